#!/bin/sh
# Runs systemd in a machine. $1 is the cgroup that it takes for the root of all.
set -eu

# In each hierarchy systemd takes what it sees for the whole machine's, so it gets a group of its
# own. (A new group of the cpuset hierarchy has no CPUs yet; systemd does not use that hierarchy.)
hierarchies=$(awk '($3 == "cgroup" || $3 == "cgroup2") && $2 ~ "^/sys/fs/cgroup" { print $2 }' /proc/mounts)
for at in $hierarchies; do
  [ -e "$at/cpuset.cpus" ] && [ ! -e "$at/cgroup.controllers" ] && continue
  mkdir -p "$at$1"
  echo $$ >"$at$1/cgroup.procs"
done

# systemd answers nobody whose process it does not see.
cat >/usr/local/bin/systemctl <<'END'
#!/bin/sh
exec nsenter --target "$(cat /run/systemd.pid)" --pid -- /usr/bin/systemctl "$@"
END
chmod +x /usr/local/bin/systemctl

exec unshare --pid --mount --cgroup --propagation slave --fork --kill-child sh -euc '
awk "/^PPid/ { print \$2 }" /proc/self/status >/run/systemd.pid # as the machine has it
mount -t proc proc /proc

# The same hierarchies, from the new root on.
awk "(\$3 == \"cgroup\" || \$3 == \"cgroup2\") && \$2 ~ \"^/sys/fs/cgroup\" { print \$2, \$3, \$4 }" /proc/mounts |
while read -r at type options; do
  own=$(echo "$options" | tr , "\n" | grep -vxE "r[ow]|relatime|nosuid|nodev|noexec|nsdelegate|memory_recursiveprot" | paste -sd, || true)
  umount "$at"
  mount -t "$type" ${own:+-o "$own"} cgroup "$at"
done

# Devices of its own, and none of the units and generators by which a system sets its machine up:
# file systems, devices, kernel settings, consoles.
mount -t tmpfs tmpfs /mnt
for device in null zero full random urandom tty fuse kmsg; do
  touch /mnt/$device && mount --bind /dev/$device /mnt/$device
done
mkdir /mnt/pts /mnt/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts /mnt/pts
ln -s pts/ptmx /mnt/ptmx
ln -s /proc/self/fd /mnt/fd
mount --move /mnt /dev
rm -rf /etc/systemd/system
mkdir -p /etc/systemd/system
: >/etc/fstab
for dir in /usr/lib/systemd/system-generators /usr/lib/systemd/system/*.target.wants; do
  mount -t tmpfs tmpfs "$dir"
done
# What is mounted for pods must be seen by containerd and by the pods.
mount --make-rshared /
exec env -i container=other PATH="$PATH" /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=0
'
