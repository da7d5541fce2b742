#!/bin/sh
# No data is removed, not by a purge either.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
case "${1:-0}" in
remove | purge | 0)
	if [ -d /var/lib/barque ]; then
		echo "the cluster's data stay in /var/lib/barque, and files that are not of the package in /etc/barque"
	fi
	;;
esac
