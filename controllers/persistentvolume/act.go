package persistentvolume

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/controllers/runtime"
)

// act carries out a plan. claim is the claim that was decided about, nil when there is none.
func (t *term) act(ctx context.Context, p plan, claim *corev1.PersistentVolumeClaim) (again time.Duration, err error) {
	volume := p.was
	if p.volume != nil {
		written, err := t.saveVolume(ctx, volume, p.volume)
		if err != nil {
			return 0, err
		}
		volume = written
	}
	if p.claim != nil {
		written, err := t.saveClaim(ctx, claim, p.claim)
		if err != nil {
			return 0, err
		}
		claim = written
	}
	for _, e := range p.volumeEvents {
		t.tell(volume, e)
	}
	for _, e := range p.claimEvents {
		t.tell(claim, e)
	}
	if p.destroy != "" {
		return t.destroy(ctx, volume, p.destroy)
	}
	if p.waits {
		return resync, nil
	}
	return 0, nil
}

// saveVolume writes the differences: first metadata and spec, then the status, because the API
// server changes one of the two in each request.
func (t *term) saveVolume(ctx context.Context, was, next *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	api, now := t.client.CoreV1().PersistentVolumes(), was
	if !apiequality.Semantic.DeepEqual(was.Spec, next.Spec) ||
		!apiequality.Semantic.DeepEqual(was.ObjectMeta, next.ObjectMeta) {
		written, err := api.Update(ctx, next, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("writing volume %s: %w", next.Name, err)
		}
		t.volumes.wrote(written)
		now = written
	}
	if !apiequality.Semantic.DeepEqual(now.Status, next.Status) {
		now = now.DeepCopy()
		now.Status = next.Status
		written, err := api.UpdateStatus(ctx, now, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("writing the status of volume %s: %w", next.Name, err)
		}
		t.volumes.wrote(written)
		now = written
	}
	return now, nil
}

// saveClaim is saveVolume for claims.
func (t *term) saveClaim(
	ctx context.Context, was, next *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolumeClaim, error) {
	api, now := t.client.CoreV1().PersistentVolumeClaims(next.Namespace), was
	if !apiequality.Semantic.DeepEqual(was.Spec, next.Spec) ||
		!apiequality.Semantic.DeepEqual(was.ObjectMeta, next.ObjectMeta) {
		written, err := api.Update(ctx, next, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("writing claim %s/%s: %w", next.Namespace, next.Name, err)
		}
		t.claims.wrote(written)
		now = written
	}
	if !apiequality.Semantic.DeepEqual(now.Status, next.Status) {
		now = now.DeepCopy()
		now.Status = next.Status
		written, err := api.UpdateStatus(ctx, now, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("writing the status of claim %s/%s: %w", next.Namespace, next.Name, err)
		}
		t.claims.wrote(written)
		now = written
	}
	return now, nil
}

// destroy deletes a directory of this host, and then its volume. Before, it reads the volume from
// the API server once more.
func (t *term) destroy(ctx context.Context, volume *corev1.PersistentVolume, path string) (time.Duration, error) {
	fresh, err := t.client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading volume %s before its data is deleted: %w", volume.Name, err)
	}
	claim, err := t.claimOf(ctx, fresh)
	if err != nil {
		return 0, err
	}
	if fresh.UID != volume.UID || decideVolume(fresh, claim).destroy != path {
		return runtime.Retry, nil
	}
	if err := t.cfg.RemoveAll(path); err != nil {
		again, failure := t.act(ctx, failed(fresh, "VolumeFailedDelete", err.Error()), nil)
		return max(again, resync), failure
	}
	err = t.client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name,
		*metav1.NewPreconditionDeleteOptions(string(volume.UID)))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("deleting volume %s: %w", volume.Name, err)
	}
	return 0, nil
}

// repeat is the pause before the same event is sent again. A waiting object is reconciled every 15
// s, and an event is a write.
const repeat = 5 * time.Minute

// told is the last event of an object.
type told struct {
	uid types.UID
	event
	at time.Time
}

// tell sends an event, unless it equals the object's last one.
func (t *term) tell(obj interface {
	kruntime.Object
	metav1.Object
}, e event) {
	key := runtime.KeyOf(obj)
	if last := t.told[key]; last.uid == obj.GetUID() && last.event == e && time.Since(last.at) < repeat {
		return
	}
	t.told[key] = told{obj.GetUID(), e, time.Now()}
	t.recorder.Event(obj, e.kind, e.reason, e.message)
}
