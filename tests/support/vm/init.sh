#!/bin/sh
# The first process of the guest, twice: in the kernel's root in memory, where it makes the host's root, read-only, below
# a layer in memory its own; then there, where /command is run in a delegated cgroup, as root or as user 1000. Its exit
# code is the last line that is printed.
if [ -e /modules ]; then
    busybox mount -t proc proc /proc
    busybox mount -t devtmpfs dev /dev
    for module in netfs fscache 9pnet 9pnet_virtio 9p overlay; do
        [ ! -e /modules/$module.ko ] || busybox insmod /modules/$module.ko
    done
    busybox mkdir -p /host /layer /new
    busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host
    busybox mount -t tmpfs -o size=3g layer /layer
    busybox mkdir /layer/upper /layer/work
    busybox mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /new
    busybox chmod 711 /new/root
    busybox mount -t tmpfs -o mode=1777 tmp /new/tmp
    busybox mkdir /new/tmp/guest
    busybox cp /init /command /owner /python /new/tmp/guest
    busybox umount /proc
    exec busybox switch_root /new /bin/sh /tmp/guest/init
fi

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts pts /dev/pts
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
busybox ip link set lo up

cd /sys/fs/cgroup
own=$(cat /tmp/guest/owner)
echo "+memory +pids" > cgroup.subtree_control
mkdir delegated
chown "$own:$own" delegated delegated/cgroup.procs delegated/cgroup.subtree_control delegated/cgroup.threads
# As systemd does:
"$(cat /tmp/guest/python)" -c 'import os; os.setxattr("delegated", "user.delegate", b"1")'
sh -c 'echo $$ > delegated/cgroup.procs
exec setsid --wait setpriv --reuid "$0" --regid "$0" --clear-groups bash /tmp/guest/command' "$own" < /dev/null
echo "guest: exit code $?"
busybox poweroff -f
