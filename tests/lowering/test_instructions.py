"""The counting of instructions, on lines as the compilers write them."""

from __future__ import annotations

import pytest

from samestep.lowering.instructions import branches_on_momentum, count

LINES = {
    "ptx": {
        "\tfma.rn.f32 \t%r1, %r2, %r3, %r4;": {"fma": 1},
        "\tfma.rn.f16x2 %r1, %r2, %r3, %r4;": {"fma": 2},
        "\tmad.lo.s32 %r1, %r2, %r3, %r4;": {},
        "\tmul.rn.f32 \t%r1, %r2, %r3;": {"mul": 1},
        "\tmul.f32 \t%r1, %r2, %r3;": {"mul": 1, "unrounded": 1},
        "\tmul.rn.ftz.f32 \t%r1, %r2, %r3;": {"mul": 1, "flush": 1},
        "\tmul.wide.s32 \t%rd1, %r2, 4;": {},
        "\tadd.s64 %rd1, %rd2, %rd3;": {},
        "\tsub.rn.f64 %rd1, %rd2, %rd3;": {"add": 1},
        "\tdiv.approx.f32 %r1, %r2, %r3;": {"approximate": 1},
        "\tcvt.rn.bf16x2.f32 %r1, %r2, %r3;": {"convert": 1},
        "\t@%p2 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];": {"load_128": 1},
        "\tld.global.v2.b64 { %rd1, %rd2 }, [ %rd3 + 0 ];": {"load_128": 1},
        "\t@%p2 ld.global.b16 { %rs1 }, [ %rd1 + 0 ];": {"load_16": 1},
        "\tst.global.L1::evict_last.v2.b32 [ %rd1 + 0 ], { %r1, %r2 };": {"store_64": 1},
        "\tst.shared.v4.b32 [%r12], {%r1, %r2, %r3, %r4};": {},
        "\tst.local.b32 [%rd1], %r1;": {"spill": 1},
    },
    "sass": {
        "        /*0270*/                   FFMA R25, R27, R1, R2 ;": {"fma": 1},
        "        /*0270*/                   FFMA.FTZ R25, R27, R1, R2 ;": {"fma": 1, "flush": 1},
        "        /*0270*/                   HFMA2.MMA R5, -RZ, RZ, 1.875, 0 ;": {},
        "        /*0270*/                   HFMA2 R5, -RZ, RZ, 0, 5.9604644775390625e-08 ;": {},
        "        /*0270*/                   HFMA2.BF16_V2 R5, R1, R2, -RZ ;": {"fma": 2},
        "        /*0270*/                   FFMA2 R4, R6, R8, R10 ;": {"fma": 2},
        "        /*0270*/                   DFMA R2, R4, R6, R8 ;": {"fma": 1},
        "        /*0270*/                   IMAD.WIDE R22, R13, 0x2, R22 ;": {},
        "        /*0270*/              @!P0 FMUL R25, R27, UR7 ;": {"mul": 1},
        "        /*0270*/                   FADD R29, -R28, 1 ;": {"add": 1},
        "        /*0270*/                   HADD2.F32 R1, -RZ, R2.H0_H0 ;": {"convert": 1},
        "        /*0270*/                   F2FP.BF16.F32.PACK_AB R1, R2, R3 ;": {"convert": 1},
        "        /*0270*/                   MUFU.RCP R1, R2 ;": {"approximate": 1},
        "        /*01c0*/              @!P0 LDG.E.128 R4, desc[UR4][R22.64] ;": {"load_128": 1},
        "        /*01c0*/                   LDG.E.64 R4, desc[UR4][R22.64] ;": {"load_64": 1},
        "        /*01c0*/                   LDG.E.U16 R4, desc[UR4][R22.64] ;": {"load_16": 1},
        "        /*01c0*/                   LDG.E R4, desc[UR4][R22.64] ;": {"load_32": 1},
        "        /*01c0*/                   LD.E.128 R4, [R22.64] ;": {"load_128": 1},
        "        /*01c0*/                   STG.E.128 desc[UR4][R2.64], R4 ;": {"store_128": 1},
        "        /*01c0*/                   STL.64 [R1], R4 ;": {"spill": 1},
        "        /*01c0*/                   STS.128 [R1], R4 ;": {},
        "        .other          k,@\"STO_CUDA_ENTRY STV_DEFAULT\"": {},
    },
    "amdgcn": {
        "\tv_fma_f32 v1, v2, v3, v4": {"fma": 1},
        "\tv_fmac_f32_e32 v1, v2, v3": {"fma": 1},
        "\tv_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]": {"fma": 2},
        "\tv_fma_mix_f32 v1, v2, v3, v4 op_sel_hi:[1,0,0]": {"fma": 1},
        "\tv_fma_mixlo_f16 v1, v2, 1.0, v4 op_sel_hi:[1,0,0]": {"fma": 1},
        "\tv_fma_mix_f32 v29, v30, v7, neg(0) op_sel_hi:[1,0,0]": {"mul": 1},
        "\tv_fma_mix_f32 v46, -v14, 1.0, v46 op_sel_hi:[1,1,0]": {"add": 1},
        "\tv_mad_u64_u32 v[0:1], s[0:1], v2, v3, v[4:5]": {},
        "\tv_pk_mul_f32 v[6:7], s[18:19], v[14:15] op_sel_hi:[0,1]": {"mul": 2},
        "\tv_mul_legacy_f32 v1, v2, v3": {"mul": 1, "flush": 1},
        "\tv_add3_u32 v18, v14, v18, s4": {},
        "\tv_sub_f32_e32 v1, v2, v3": {"add": 1},
        "\tv_cvt_f32_f16_e32 v1, v2": {"convert": 1},
        "\tv_rcp_f32_e32 v1, v2": {"approximate": 1},
        "\tglobal_load_dwordx4 v[6:9], v[2:3], off": {"load_128": 1},
        "\tbuffer_load_ushort v16, v1, s[4:7], 0 offen": {"load_16": 1},
        "\tglobal_load_short_d16_hi v16, v[0:1], off": {"load_16": 1},
        "\tflat_load_dword v1, v[0:1]": {"load_32": 1},
        "\tbuffer_store_dwordx2 v[0:1], v2, s[4:7], 0 offen": {"store_64": 1},
        "\ts_load_dwordx8 s[4:11], s[0:1], 0x8": {},
        "\tscratch_store_dword off, v1, s32": {"spill": 1},
        "\t\t.amdhsa_float_denorm_mode_32 3": {},
        "\t\t.amdhsa_float_denorm_mode_32 0": {"flush": 1},
        "\ts_setreg_imm32_b32 hwreg(HW_REG_MODE), 0": {"flush": 1},
    },
    "hivm": {
        '%1 = "hivm_regbaseintrins.intr.hivm.vmuls.s.x"(%0, %arg5, %2)': {"mul": 1},
        '%1 = "hivm_regbaseintrins.intr.hivm.vmul.s.x"(%0, %3, %2)': {"mul": 1},
        '%1 = "hivm_regbaseintrins.intr.hivm.vadds.s.x"(%0, %3, %2)': {"add": 1},
        '%1 = "hivm_regbaseintrins.intr.hivm.vsub.s.x"(%0, %3, %2)': {"add": 1},
        '%1 = "hivm_regbaseintrins.intr.hivm.vmula.s.m"(%0, %3, %4, %2)': {"fma": 1},
        '%1 = "hivm_regbaseintrins.intr.hivm.vmull.s.x"(%0, %3, %2)': {"unknown": 1},
        '%1 = "hivm_regbaseintrins.intr.hivm.vcvtff.bf162f32.x"(%0, %2, %5)': {"convert": 1},
        '%1 = "hivm_regbaseintrins.intr.hivm.vldsx1.v64f32"(%0, %2, %5)': {"load": 1},
        '%1 = "hivm_regbaseintrins.intr.hivm.vdups.z"(%0, %2, %5)': {},
        '%1 = "hivm_regbaseintrins.intr.hivm.pge.b32"(%0, %2)': {},
    },
}


@pytest.mark.parametrize(("language", "line"), [(name, line) for name, lines in LINES.items() for line in lines])
def test_a_line(language, line):
    found = count(f"first:\n{line}\nlast:\n", language)
    assert {name: n for name, n in found.items() if n} == LINES[language][line]


BRANCH = """
    %1 = llvm.mlir.constant(0.000000e+00 : f32) : f32
    %2 = llvm.mlir.constant(1.000000e+00 : f32) : f32
    %68 = llvm.fcmp "une" %67, %1 : f32
    cf.cond_br %68, ^bb5, ^bb6
"""


@pytest.mark.parametrize("change", [
    ("une", "one"), ("%67, %1 ", "%67, %2 "), ("cf.cond_br %68", "cf.cond_br %70"), (": f32\n    cf", ": f16\n    cf"),
])
def test_the_branch_on_momentum(change):
    assert branches_on_momentum(BRANCH)
    assert not branches_on_momentum(BRANCH.replace(*change))
