package localdirs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/localpv"
)

func localPV(name, path string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "pv"}, Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
	}}
}

// ownPV is a volume of the cluster's provisioner.
func ownPV(name string, local *Dirs) *v1.PersistentVolume {
	pv := localPV(name, localpv.Path(local.Root(), name))
	pv.Annotations = map[string]string{localpv.ProvisionedBy: localpv.Provisioner}
	return pv
}

// TestLocalStaysInItsRoot: whatever a PV says, nothing outside of the root is deleted, and no link
// is followed.
func TestLocalStaysInItsRoot(t *testing.T) {
	dir := t.TempDir()
	local, err := New(filepath.Join(dir, "volumes"), remembered{})
	if err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(dir, "precious")
	if err := os.MkdirAll(filepath.Join(precious, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	elsewhere := ownPV("pv", local)
	elsewhere.Spec.Local.Path = precious
	upwards := ownPV("..", local)
	dotted := ownPV("../precious", local)
	byHand := localPV("pv", localpv.Path(local.Root(), "pv"))
	for _, pv := range []*v1.PersistentVolume{elsewhere, upwards, dotted, byHand} {
		if err := local.Delete(pv); err == nil {
			t.Errorf("%s at %s was deleted", pv.Name, pv.Spec.Local.Path)
		}
	}
	linked := ownPV("linked", local)
	if err := os.Symlink(precious, filepath.Join(local.Root(), "linked")); err != nil {
		t.Fatal(err)
	}
	if err := local.Ensure(t.Context(), linked); err == nil {
		t.Error("a symbolic link was taken for a volume")
	}
	if err := local.Delete(linked); err != nil {
		t.Error(err)
	}
	good := ownPV("good", local)
	if err := local.Ensure(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(local.Root(), "good", "link")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := local.Delete(good); err != nil {
			t.Error(err)
		}
	}
	if names, err := local.Names(); err != nil || len(names) != 0 {
		t.Errorf("left: %v %v", names, err)
	}
	if _, err := os.Stat(filepath.Join(precious, "data")); err != nil {
		t.Errorf("outside of the root: %v", err)
	}
}

// remembered is the record of made directories, outside of the disk.
type remembered map[string]bool

var errLost = errors.New("made before, and gone")

func (r remembered) MayMake(_ context.Context, pv *v1.PersistentVolume, _ func() (bool, error)) error {
	if r[pv.Name] {
		return errLost
	}
	return nil
}

func (r remembered) Made(_ context.Context, pv *v1.PersistentVolume) error {
	r[pv.Name] = true
	return nil
}

// TestALostDirectoryIsNotMadeAgain: an empty directory must not pass for the data.
func TestALostDirectoryIsNotMadeAgain(t *testing.T) {
	record := remembered{}
	on := func(disk string) *Dirs {
		local, err := New(filepath.Join(disk, "volumes"), record)
		if err != nil {
			t.Fatal(err)
		}
		return local
	}
	old := on(t.TempDir())
	pv := ownPV("pv", old)
	if err := old.Ensure(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	if !record["pv"] {
		t.Fatal("a pod gets a directory that is not recorded")
	}
	rebuilt := on(t.TempDir())
	pv = ownPV("pv", rebuilt)
	if err := rebuilt.Ensure(t.Context(), pv); !errors.Is(err, errLost) {
		t.Errorf("on the rebuilt machine: %v", err)
	}
	if has, err := rebuilt.Has(pv); err != nil || has {
		t.Errorf("a directory was made: %v, %v", has, err)
	}
	if err := os.Mkdir(localpv.Path(rebuilt.Root(), "pv"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := rebuilt.Ensure(t.Context(), pv); err != nil {
		t.Errorf("after the data was put back: %v", err)
	}
	delete(record, "pv") // as a crash before the record leaves it
	if err := rebuilt.Ensure(t.Context(), pv); err != nil || !record["pv"] {
		t.Errorf("after a crash: %v, recorded %v", err, record["pv"])
	}
}
