package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/kubelet/volumes"
)

// pluginName is upstream's name of the caller of CSI drivers.
const pluginName = "kubernetes.io/csi"

// dataFile has the record of a volume. Its name and content are upstream's: drivers' tools read it.
// It is there before a driver is first asked for the volume, and goes when the driver is rid of it.
const dataFile = "vol_data.json"

// The keys in a dataFile.
const (
	dataSpec       = "specVolID"
	dataHandle     = "volumeHandle"
	dataDriver     = "driverName"
	dataNode       = "nodeName"
	dataAttachment = "attachmentID"
	dataLifecycle  = "volumeLifecycleMode"
	dataLabel      = "seLinuxMountContext"
)

// use is the way in which a pod uses a volume.
type use struct {
	mode    v1.PersistentVolumeAccessMode
	block   bool
	fsType  string
	options []string
	group   *int64
}

// useOf returns the way in which a pod uses a volume. The label is empty, or the SELinux label for
// the mount.
func useOf(v *volumes.Volume, group *int64, label string) use {
	u := use{mode: v1.ReadWriteOnce, block: v.Block(), group: group}
	if v.PV == nil {
		if t := v.Source.CSI.FSType; t != nil {
			u.fsType = *t
		}
		return u
	}
	if modes := v.PV.Spec.AccessModes; len(modes) > 0 {
		u.mode = modes[0]
	}
	u.fsType = v.PV.Spec.CSI.FSType
	if u.block {
		return u
	}
	u.options = v.PV.Spec.MountOptions
	if label != "" {
		u.options = append(slices.Clone(u.options), fmt.Sprintf("context=%q", label))
	}
	return u
}

func driverOf(v *volumes.Volume) string {
	if v.PV != nil {
		return v.PV.Spec.CSI.Driver
	}
	return v.Source.CSI.Driver
}

// handleOf is the driver's name of a volume. The name of one that a pod describes itself is made of
// the pod and the volume.
func handleOf(v *volumes.Volume) string {
	if v.PV != nil {
		return v.PV.Spec.CSI.VolumeHandle
	}
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(v.Pod)+v.Name)))
}

func lifecycleOf(v *volumes.Volume) storagev1.VolumeLifecycleMode {
	if v.PV != nil {
		return storagev1.VolumeLifecyclePersistent
	}
	return storagev1.VolumeLifecycleEphemeral
}

func specName(v *volumes.Volume) string {
	if v.PV != nil {
		return v.PV.Name
	}
	return v.Name
}

// uniqueName is the name of a volume in the status of its node.
func uniqueName(driver, handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(pluginName + "/" + driver + "^" + handle)
}

// attachmentName is the name of the VolumeAttachment of a volume on a node.
func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// places are where a volume is, as upstream's kubelet has them. Drivers' manifests and tools rely
// on them:
//
//	plugins/kubernetes.io/csi/<driver>/<hash of handle>/globalmount    staged files
//	pods/<uid>/volumes/kubernetes.io~csi/<PV or volume>/mount           a pod's files
//	plugins/kubernetes.io/csi/volumeDevices/staging/<PV>                a staged device
//	plugins/kubernetes.io/csi/volumeDevices/publish/<PV>/<uid>          a pod's device
//	plugins/kubernetes.io/csi/volumeDevices/<PV>/data                   the record of a device
//	pods/<uid>/volumeDevices/kubernetes.io~csi/<PV>                     a link to the pod's device
type places struct{ root string }

// staging is the path where a volume is staged, below the directory of plugins.
func (places) staging(v *volumes.Volume) string {
	if v.Block() {
		return filepath.Join(pluginName, "volumeDevices", "staging", v.PV.Name)
	}
	return filepath.Join(pluginName, driverOf(v), fmt.Sprintf("%x", sha256.Sum256([]byte(handleOf(v)))), "globalmount")
}

func (p places) devices() string {
	return filepath.Join(p.root, "plugins", pluginName, "volumeDevices")
}

// target is the path where the driver publishes a volume for a pod.
func (p places) target(v *volumes.Volume) string {
	if v.Block() {
		return filepath.Join(p.devices(), "publish", v.PV.Name, string(v.Pod))
	}
	return filepath.Join(v.Dir, "mount")
}

// stagingData is the directory of the dataFile of a staged volume.
func (p places) stagingData(v *volumes.Volume) string {
	if v.Block() {
		return filepath.Join(p.devices(), v.PV.Name, "data")
	}
	return filepath.Dir(v.Staged)
}

// known reports whether there is a dataFile in a directory.
func known(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, dataFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// saveData writes a dataFile.
func saveData(dir string, data map[string]string) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, dataFile), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("note the volume on disk: %w", err)
	}
	return nil
}

func loadData(dir string) (map[string]string, error) {
	path := filepath.Join(dir, dataFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var data map[string]string
	if err := json.Unmarshal(text, &data); err != nil {
		return nil, fmt.Errorf("%s: %w; unmount the volume by hand and remove the file", path, err)
	}
	return data, nil
}

// forgetData removes a dataFile, and the directory if nothing else is in it.
func forgetData(dir string) error {
	if err := atomicfile.Remove(filepath.Join(dir, dataFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeEmpty(dir)
}

func removeEmpty(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
