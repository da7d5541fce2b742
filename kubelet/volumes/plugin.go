package volumes

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/volumes/diskusage"
)

// Volume is one volume of a pod.
type Volume struct {
	Name string // in the pod
	// Source is the volume in the pod's spec. It is nil for a recorded volume of a
	// claim: see record.
	Source *v1.VolumeSource
	// Pod has the volume.
	Pod types.UID
	// PV is the volume that the pod's claim is bound to, and Claim is the claim's name. Both are
	// empty for volumes that the pod describes itself.
	PV    *v1.PersistentVolume
	Claim string
	// ReadOnly is set by the claim's user. The plugin applies the PV's own settings.
	ReadOnly bool
	// Dir is the place of the volume in the pod's directory. The plugin makes it.
	Dir string
	// Lock keeps others from setting up volumes of the same PV until unlock is called. Shared
	// reports whether it is set up for another pod of this node.
	Lock   func() (unlock func())
	Shared func() (bool, error)
	// Label returns the SELinux label with which the volume may be mounted for its pod: see
	// selinux.MountLabel. It is nil for a volume that the disk remembers.
	Label func() (string, error)
	// Staged is where a Stager has made the volume ready for the whole node.
	Staged string
}

// Block reports whether containers get the volume as a device.
func (v *Volume) Block() bool {
	return v.PV != nil && v.PV.Spec.VolumeMode != nil && *v.PV.Spec.VolumeMode == v1.PersistentVolumeBlock
}

// Plugin provides the volumes of one kind. Calls for different pods may run at the same time.
type Plugin interface {
	// Name is upstream's name of the kind, such as kubernetes.io/empty-dir.
	Name() string
	// Provides reports whether a volume is of this kind.
	Provides(v *Volume) bool
	// SetUp makes a volume of a pod ready and up to date. It returns the path of the volume on the
	// host: a directory, a file, or the device of a block volume. again is when to call it again
	// without a change: zero for never. It is called often, and does
	// nothing for a volume that is up to date.
	SetUp(ctx context.Context, pod *v1.Pod, v *Volume) (path string, again time.Time, err error)
	// TearDown undoes SetUp, also one of an earlier process, and one that was interrupted. It needs
	// no pod, and no API server. Plain files below v.Dir are removed by the manager.
	TearDown(v *Volume) error
	// Usage measures a volume that is set up. It is nil where the volume has no size of its own.
	Usage(ctx context.Context, v *Volume, path string) (*diskusage.Usage, error)
}

// Stager is a Plugin of volumes that the node makes ready once for all of its pods. Records on disk
// show whether a pod still has a volume, so that a new process knows the staged volumes of an
// earlier one. All volumes of a Stager have records, also those that pods describe themselves.
type Stager interface {
	Plugin
	// NeedsStaging reports whether a volume must be staged at all. It is called when the volume
	// first comes to a pod.
	NeedsStaging(v *Volume) (bool, error)
	// StagingPlace is where a volume is staged, below the directory of plugins.
	StagingPlace(v *Volume) string
	// Stage makes a volume ready at v.Staged. It is called before each SetUp.
	Stage(ctx context.Context, v *Volume) error
	// Unstage undoes Stage when no pod has the volume any more.
	Unstage(v *Volume) error
}

// DriverError is an error of a driver. The pauses between calls of the driver grow after it.
type DriverError struct{ Err error }

func (e *DriverError) Error() string { return e.Err.Error() }

func (e *DriverError) Unwrap() error { return e.Err }

// AttachLimitError is returned when the node has as many volumes of a driver as it takes.
type AttachLimitError struct {
	Err       error
	unmounted []string // the pod's missing volumes
	volume    string
}

func (e *AttachLimitError) Error() string {
	return fmt.Sprintf(
		"Node has reached its volume attachment limit, rejecting pod. unmounted volumes=%v, unattached volumes=[%s], failed to process volumes=[]: %v",
		e.unmounted, e.volume, e.Err)
}

func (e *AttachLimitError) Unwrap() error { return e.Err }

// dirNameOf returns a plugin's name as it stands in paths.
func dirNameOf(plugin string) string { return strings.ReplaceAll(plugin, "/", "~") }

// place is where a pod's volume belongs.
func (m *Manager) place(uid types.UID, plugin string, v *Volume) string {
	kind, name := "volumes", v.Name
	if v.PV != nil {
		name = v.PV.Name
	}
	if v.Block() {
		kind = "volumeDevices"
	}
	return filepath.Join(m.PodDir(uid), kind, dirNameOf(plugin), name)
}
