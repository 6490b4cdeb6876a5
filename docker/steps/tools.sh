# envspec and nox with what they need in /opt/tools: an environment of its own, so that the tools never change the stack.
set -eu
umask 022
. /run/steps/network.sh

/run/uv/uv venv --quiet --python "$(readlink -f /opt/env/bin/python)" /opt/tools
/run/uv/uv pip sync --quiet --python /opt/tools/bin/python --require-hashes --only-binary :all: --compile-bytecode /run/tools/requirements.lock
echo /opt/tools/project >"$(/opt/tools/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
cat >/opt/tools/bin/envspec <<'SCRIPT'
#!/bin/sh
exec /opt/tools/bin/python -I -B -m envspec "$@"
SCRIPT
cp /run/steps/enter.sh /opt/tools/bin/enter
chmod 755 /opt/tools/bin/envspec /opt/tools/bin/enter
ln -s /opt/tools/bin/envspec /usr/local/bin/envspec
ln -s /opt/tools/bin/nox /usr/local/bin/nox
