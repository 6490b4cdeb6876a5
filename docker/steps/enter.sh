#!/bin/sh
# The images' entry point: `enter ROLE [COMMAND | OPTIONS ...]`. A command is run as it is; options alone, or nothing, go to what the
# role is for: Python for train, the stack's server for infer.
role=$1
shift
case "${1-}" in
    '' | -*) ;;
    *) exec "$@" ;;
esac
if [ "$role" = infer ]; then
    if [ -x /opt/env/bin/vllm ]; then
        exec /opt/env/bin/vllm serve "$@"
    fi
    for package in /opt/env/lib/python3*/site-packages/sglang; do
        [ ! -d "$package" ] || exec /opt/env/bin/python -m sglang.launch_server "$@"
    done
fi
exec /opt/env/bin/python "$@"
