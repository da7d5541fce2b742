#!/bin/sh
# An upgrade leaves the nodes running. A removal stops them; pods run on without them.
set -e
case "${1:-0}" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		for unit in barque-server barque-agent; do
			systemctl --quiet disable --now "$unit" 2>/dev/null || true
		done
	fi
	;;
esac
