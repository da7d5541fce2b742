#!/bin/sh
# An upgrade leaves the nodes running. A removal stops those of this package's units, whose pods run
# on without them. A unit in /etc is of `barque install`, and stays.
set -e
case "${1:-0}" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		for unit in barque-server barque-agent; do
			case "$(systemctl show --property=FragmentPath --value "$unit" 2>/dev/null)" in
			/usr/lib/systemd/system/* | /lib/systemd/system/*)
				systemctl --quiet disable --now "$unit" 2>/dev/null || true
				;;
			esac
		done
	fi
	;;
esac
