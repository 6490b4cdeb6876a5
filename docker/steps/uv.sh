# uv from its locked wheel, into /uv.
set -eu
umask 022
. /run/steps/network.sh

python3 -m venv /tmp/uv
/tmp/uv/bin/python -m pip install --quiet --no-deps --only-binary :all: --require-hashes -r /run/tools/uv.txt
mkdir /uv
cp /tmp/uv/bin/uv /uv/uv
