package localvolumes

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/internal/localpv"
)

// deleted is a volume on a node that is being deleted.
func deleted(node string, changes ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pv", Labels: map[string]string{localpv.NodeLabel: node}, Finalizers: []string{localpv.Finalizer},
			Annotations:       map[string]string{localpv.ProvisionedBy: localpv.Provisioner},
			DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)},
		},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource:        v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/v/pv"}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{
					{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeReleased},
	}
	for _, change := range changes {
		change(pv)
	}
	return pv
}

func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		pv   *v1.PersistentVolume
		want act
	}{
		"deleted": {deleted("n"), deleteData},
		"to be kept": {
			deleted("n",
				func(
					v *v1.PersistentVolume,
				) {
					v.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
				}), release},
		"released, and not deleted": {deleted("n", func(v *v1.PersistentVolume) { v.DeletionTimestamp = nil }),
			leave},
		"bound": {deleted("n", func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeBound }),
			leave},
		"protected": {
			deleted("n",
				func(v *v1.PersistentVolume) { v.Finalizers = append(v.Finalizers, "kubernetes.io/pv-protection") }),
			leave},
		"done":            {deleted("n", func(v *v1.PersistentVolume) { v.Finalizers = nil }), leave},
		"of another node": {deleted("m"), leave},
		"said to be of this node": {
			deleted("m", func(v *v1.PersistentVolume) { v.Labels[localpv.NodeLabel] = "n" }), leave},
		"made by another provisioner": {
			deleted("n", func(v *v1.PersistentVolume) { v.Annotations[localpv.ProvisionedBy] = "x" }), leave},
	} {
		if got := decide(c.pv, "n"); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// directories records deletions.
type directories struct {
	mu      sync.Mutex
	deleted []string
	limits  []string
	there   map[string]bool
}

func (d *directories) Root() string { return "/v" }
func (d *directories) Delete(pv *v1.PersistentVolume) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deleted = append(d.deleted, pv.Name)
	return nil
}
func (d *directories) Has(pv *v1.PersistentVolume) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.there[pv.Name], nil
}
func (d *directories) Names() ([]string, error) { return nil, nil }
func (d *directories) Enforces() (bool, error)  { return true, nil }
func (d *directories) Limit(pv *v1.PersistentVolume) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limits = append(d.limits, pv.Spec.Capacity.Storage().String())
	return nil
}

func (d *directories) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.deleted)
}

// TestAgent: volumes that were deleted before the node came are cleaned up, once no pod has them.
func TestAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(deleted("n"), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		dirs := &directories{}
		began := time.Now()
		a := New(Config{NodeName: "n", Client: client, Directories: dirs, Logger: slog.New(slog.DiscardHandler),
			InUse: func(string) (bool, error) { return time.Since(began) < time.Hour, nil }})
		done := make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { done <- a.Run(ctx) }() // ends with ctx
		a.Observe(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		time.Sleep(30 * time.Minute)
		if dirs.count() != 0 {
			t.Error("the directory of a volume was deleted that a pod has")
		}
		if n, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{}); err != nil ||
			n.Annotations[localpv.RootAnnotation] != "/v" || n.Annotations[localpv.EnforcedAnnotation] != "true" {
			t.Errorf("the node: %v %v", n, err)
		}
		time.Sleep(time.Hour)
		if dirs.count() == 0 {
			t.Error("the directory was not deleted")
		}
		pv, err := client.CoreV1().PersistentVolumes().Get(ctx, "pv", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) && (err != nil || len(pv.Finalizers) != 0) {
			t.Errorf("the volume: %v %v", pv, err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestLimits: a volume that grows gets its new size on the node, and others' volumes are left
// alone.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		living := func(v *v1.PersistentVolume) {
			v.DeletionTimestamp, v.Status.Phase = nil, v1.VolumeBound
			v.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		}
		pv := deleted("n", living)
		client := fake.NewClientset(pv, deleted("m", living, func(v *v1.PersistentVolume) { v.Name = "other" }))
		dirs := &directories{}
		a := New(
			Config{NodeName: "n", Client: client, Directories: dirs, Logger: slog.New(slog.DiscardHandler),
				InUse: func(string) (bool, error) { return true, nil }})
		done := make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { done <- a.Run(ctx) }() // ends with ctx
		synctest.Wait()
		pv = pv.DeepCopy()
		pv.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("3Gi")
		if _, err := client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		dirs.mu.Lock()
		if got := strings.Join(dirs.limits, " "); got != "1Gi 3Gi" {
			t.Errorf("limits %s", got)
		}
		dirs.mu.Unlock()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
