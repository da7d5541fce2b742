package localvolumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/internal/localpv"
)

// Record keeps, outside of the node's disk, which volumes had a directory. It is the annotation
// localpv.DirectoryAnnotation of the PV:
//
//	absent ──the directory was made──▶ made ──it is gone──▶ lost
//	made   ◀──it is back────────────── lost
//	absent ◀──a person removes it───── made, lost
//
// A crash between the making and the record is harmless: no pod has the directory yet, and the
// next attempt finds it.
type Record struct {
	client kubernetes.Interface // as the node
	logger *slog.Logger
}

// NewRecord returns the record of the node's volumes.
func NewRecord(client kubernetes.Interface, logger *slog.Logger) Record {
	return Record{client, logger}
}

// LostError is returned for a volume whose directory was made before, and is gone.
type LostError struct{ PV, Path string }

func (e *LostError) Error() string {
	return fmt.Sprintf(
		"the data of volume %s is not on this node any more: its directory %s was made before, and is gone, because the machine was rebuilt, its disk is not mounted, or a backup brought the volume back. "+
			"Put the data back in that directory, or declare it lost and begin with an empty one: %s", e.PV, e.Path,
		localpv.DeclareLost(e.PV))
}

// MayMake implements localdirs.Record.
func (r Record) MayMake(ctx context.Context, pv *v1.PersistentVolume, has func() (bool, error)) error {
	there := false
	now, err := r.gone(ctx, pv.Name, func() (_ bool, err error) {
		there, err = has()
		return there, err
	})
	if err != nil || there || now.Annotations[localpv.DirectoryAnnotation] == "" {
		return err
	}
	return &LostError{PV: now.Name, Path: now.Spec.Local.Path}
}

// Made implements localdirs.Record.
func (r Record) Made(ctx context.Context, pv *v1.PersistentVolume) error {
	_, err := r.set(ctx, pv.Name, func(string) string { return localpv.Made })
	return err
}

// gone records that a directory is not there. That is a loss if it was made. has checks the
// directory after the record was read: another pod may have made it since the caller's check.
func (r Record) gone(ctx context.Context, pv string, has func() (bool, error)) (*v1.PersistentVolume, error) {
	var failed error
	now, err := r.set(ctx, pv, func(was string) string {
		if was != localpv.Made {
			return was
		}
		there, err := has()
		if failed = err; err != nil || there {
			return was
		}
		return localpv.Lost
	})
	return now, errors.Join(err, failed)
}

// set changes the record of a volume, and returns the volume. It reads the volume anew: a person
// may have declared the data lost meanwhile. A server of an earlier version forbids the change.
// Pods do not wait for the end of an upgrade, so that is no error; the agent tries again at its
// next start.
func (r Record) set(ctx context.Context, name string, to func(was string) string) (*v1.PersistentVolume, error) {
	api := r.client.CoreV1().PersistentVolumes()
	pv, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read whether volume %s was made before: %w", name, err)
	}
	was := pv.Annotations[localpv.DirectoryAnnotation]
	is := to(was)
	if is == was {
		return pv, nil
	}
	pv = pv.DeepCopy()
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, localpv.DirectoryAnnotation, is)
	_, err = api.Update(ctx, pv, metav1.UpdateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		r.logger.Warn("the API server does not take the record of a volume's directory", "volume", name, "is", is,
			"err", err)
	case err != nil:
		return nil, fmt.Errorf("record on volume %s that its directory is %s: %w", name, is, err)
	case is == localpv.Lost:
		r.logger.Error("the directory of a volume was made before, and is gone: its pods wait", "volume", name,
			"directory", pv.Spec.Local.Path)
	case was == localpv.Lost:
		r.logger.Info("the directory of a lost volume is back", "volume", name, "directory", pv.Spec.Local.Path)
	}
	return pv, nil
}
