#!/usr/bin/env bash
# Install what the Ascend path needs that is no Python package of the environment: the compilers for Ascend 950 into a
# folder of their own (triton-ascend would replace triton in the environment), and as root the Debian packages of LLVM 19.
#   tests/lowering/install_ascend.sh FOLDER [PYTHON]
set -euo pipefail
folder=${1:?the folder to install the compilers into}
python=${2:-python3}
if [ ! -x "$folder/ascendnpuir/bin/bishengir-compile-a5" ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
        --target "$folder" triton-ascend==3.2.0 ascendnpu-ir==1.2.0
fi
missing=
for tool in mlir-opt-19 mlir-translate-19 llc-19 cc; do
    command -v "$tool" > /dev/null || missing=yes
done
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq
    apt-get install -qq --no-install-recommends mlir-19-tools llvm-19 gcc libc6-dev
fi
