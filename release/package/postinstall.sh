#!/bin/sh
# Nothing is started, enabled or restarted here: that is for the operator to say.
set -e

# The limits of sysctl.d count from now on where they are lower. Where /proc/sys cannot be written,
# as in a container, they are those of the machine.
while read -r name _ value; do
	case "$name" in fs.*) ;; *) continue ;; esac
	path="/proc/sys/$(echo "$name" | tr . /)"
	if [ -w "$path" ] && [ "$(cat "$path")" -lt "$value" ]; then
		echo "$value" 2>/dev/null >"$path" || true
	fi
done </usr/lib/sysctl.d/90-barque.conf

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	for unit in barque-server barque-agent; do
		if systemctl --quiet is-active "$unit"; then
			echo "$unit runs on in the version before; when it suits: systemctl restart $unit"
		fi
	done
fi
