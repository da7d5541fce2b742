package volumes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/volumes/diskusage"
)

// nfs are directories of NFS servers. Each pod has a mount of its own, which the kernel shares
// where it can.
type nfs struct{ mounts Mounts }

// nfsPatience bounds one try to mount. A server that does not answer delays one pod, with an event.
const nfsPatience = 2 * time.Minute

func (nfs) Name() string { return "kubernetes.io/nfs" }

func (nfs) Provides(v *Volume) bool { return nfsOf(v) != nil }

func nfsOf(v *Volume) *v1.NFSVolumeSource {
	if v.PV != nil {
		return v.PV.Spec.NFS
	}
	if v.Source != nil {
		return v.Source.NFS
	}
	return nil
}

// SetUp implements Plugin.
func (p nfs) SetUp(ctx context.Context, _ *v1.Pod, v *Volume) (string, time.Time, error) {
	if mounted, err := p.mounts.Mounted(v.Dir); err != nil || mounted {
		return v.Dir, time.Time{}, err
	}
	tool, err := exec.LookPath("mount.nfs")
	if err != nil {
		tool, err = exec.LookPath("/sbin/mount.nfs")
	}
	if err != nil {
		return "", time.Time{},
			errors.New("this node has no mount.nfs: install nfs-common (Debian, Ubuntu) or nfs-utils (Fedora, SUSE)")
	}
	if err := os.MkdirAll(v.Dir, 0o750); err != nil {
		return "", time.Time{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, nfsPatience,
		fmt.Errorf("the server has not answered for %s", nfsPatience))
	defer cancel()
	args := nfsArguments(v)
	command := exec.CommandContext(ctx, tool, args...)
	command.WaitDelay = time.Second
	if out, err := command.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", time.Time{},
			fmt.Errorf("mount.nfs %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return v.Dir, time.Time{}, nil
}

// nfsArguments are those of mount.nfs.
func nfsArguments(v *Volume) []string {
	source := nfsOf(v)
	host := source.Server
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		host = "[" + host + "]"
	}
	var options []string
	if v.PV != nil {
		options = slices.Clone(v.PV.Spec.MountOptions)
	}
	if source.ReadOnly || v.ReadOnly {
		options = append(options, "ro")
	}
	args := []string{host + ":" + source.Path, v.Dir}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	return args
}

// TearDown implements Plugin. A server that is gone does not keep a pod from ending.
func (p nfs) TearDown(v *Volume) error { return p.mounts.Unmount(v.Dir) }

// Usage implements Plugin.
func (nfs) Usage(_ context.Context, _ *Volume, path string) (*diskusage.Usage, error) {
	return diskusage.FileSystem(path)
}
