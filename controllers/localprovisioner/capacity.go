package localprovisioner

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/localpv"
)

// Where the capacities of nodes are published, and upstream's label that says whose they are.
const (
	capacityNamespace = metav1.NamespaceSystem
	driverLabel       = "csi.storage.k8s.io/drivername"
)

// all is the one key of the loop: all capacities are computed together.
var all = []runtime.Key{{Name: "all"}}

func (t *term) watchCapacity() {
	runtime.Watch(t.capacityLoop, t.nodes, diskChanged)
	runtime.Watch(t.capacityLoop, t.volumes, func(old, now *corev1.PersistentVolume) []runtime.Key {
		if (old == nil || !localpv.Is(old)) && (now == nil || !localpv.Is(now)) {
			return nil
		}
		return all
	})
	runtime.Watch(t.capacityLoop, t.classes, func(_, _ *storagev1.StorageClass) []runtime.Key { return all })
	runtime.Watch(t.capacityLoop, t.drivers, func(_, _ *storagev1.CSIDriver) []runtime.Key { return all })
	runtime.Watch(t.capacityLoop, t.capacities, func(old, now *storagev1.CSIStorageCapacity) []runtime.Key {
		if c := cmpFirst(now, old); c.Labels[driverLabel] != localpv.Provisioner {
			return nil
		}
		return all
	})
}

// diskChanged wakes the loop for a node whose capacity has changed. Nodes without local volumes
// wake nothing: thousands of them may come at a time, and each look reads all nodes.
func diskChanged(old, now *corev1.Node) []runtime.Key {
	var before, after disk
	if old != nil {
		before = diskOf(old)
	}
	if now != nil {
		after = diskOf(now)
	}
	if before == after || before.root == "" && after.root == "" {
		return nil
	}
	return all
}

func cmpFirst[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// disk is the part of a node on which its local volumes depend.
type disk struct {
	root, host string
	bytes      int64
}

func diskOf(n *corev1.Node) disk {
	q := n.Status.Capacity[corev1.ResourceEphemeralStorage]
	return disk{n.Annotations[localpv.RootAnnotation], n.Labels[corev1.LabelHostname], q.Value()}
}

// decideCapacities returns the free capacity of each node for each class: the node's disk less the
// capacity of its volumes. The use may differ: volumes may be less full, and the node has other
// files.
func decideCapacities(
	classes []*storagev1.StorageClass, nodes []*corev1.Node, volumes []*corev1.PersistentVolume,
) map[string]*storagev1.CSIStorageCapacity {
	promised := map[string]int64{}
	for _, v := range volumes {
		if localpv.Is(v) {
			q := v.Spec.Capacity[corev1.ResourceStorage]
			promised[v.Labels[localpv.NodeLabel]] += q.Value()
		}
	}
	want := map[string]*storagev1.CSIStorageCapacity{}
	for _, class := range classes {
		if class.Provisioner != localpv.Provisioner {
			continue
		}
		for _, node := range nodes {
			d := diskOf(node)
			if d.root == "" || d.host == "" {
				continue
			}
			name := capacityName(class.Name, node.Name)
			want[name] = &storagev1.CSIStorageCapacity{
				ObjectMeta: metav1.ObjectMeta{Namespace: capacityNamespace, Name: name,
					Labels: map[string]string{driverLabel: localpv.Provisioner,
						"csi.storage.k8s.io/managed-by": "barque"}},
				StorageClassName: class.Name,
				NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: d.host}},
				Capacity:         resource.NewQuantity(max(0, d.bytes-promised[node.Name]), resource.BinarySI),
			}
		}
	}
	return want
}

func capacityName(class, node string) string {
	h := fnv.New64a()
	h.Write([]byte(class + "/" + node))
	return fmt.Sprintf("csisc-local-%016x", h.Sum64())
}

// reconcileCapacity publishes the capacities while the scheduler asks for them: the CSIDriver
// object says so.
func (t *term) reconcileCapacity(ctx context.Context, key runtime.Key) (time.Duration, error) {
	var want map[string]*storagev1.CSIStorageCapacity
	driver, err := t.listDrivers.Get(localpv.Provisioner)
	switch {
	case err == nil && ptr.Deref(driver.Spec.StorageCapacity, false):
		if want, err = t.capacitiesNow(); err != nil {
			return 0, err
		}
	case err != nil && !apierrors.IsNotFound(err):
		return 0, err
	}
	have, err := t.listCapacities.CSIStorageCapacities(capacityNamespace).List(
		labels.SelectorFromSet(labels.Set{driverLabel: localpv.Provisioner}))
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, is := range have {
		w := want[is.Name]
		delete(want, is.Name)
		errs = append(errs, t.correct(ctx, key, is, w))
	}
	for _, w := range want {
		errs = append(errs, t.correct(ctx, key, nil, w))
	}
	return 0, errors.Join(errs...)
}

func (t *term) capacitiesNow() (map[string]*storagev1.CSIStorageCapacity, error) {
	classes, err := t.listClasses.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	nodes, err := t.listNodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	volumes, err := t.listVolumes.List(labels.Everything())
	return decideCapacities(classes, nodes, volumes), err
}

// correct changes one published capacity to the wanted one; nil is none.
func (t *term) correct(ctx context.Context, key runtime.Key, is, want *storagev1.CSIStorageCapacity) error {
	api := t.client.StorageV1().CSIStorageCapacities(capacityNamespace)
	var made *storagev1.CSIStorageCapacity
	var err error
	switch {
	case want == nil:
		err = api.Delete(ctx, is.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &is.UID}})
	case is == nil:
		made, err = api.Create(ctx, want, metav1.CreateOptions{})
	case is.Capacity != nil && is.Capacity.Cmp(*want.Capacity) == 0 && is.StorageClassName == want.StorageClassName &&
		equality.Semantic.DeepEqual(is.NodeTopology, want.NodeTopology):
		return nil
	default:
		next := is.DeepCopy()
		next.StorageClassName, next.NodeTopology, next.Capacity = want.StorageClassName, want.NodeTopology,
			want.Capacity
		made, err = api.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("publishing the capacity of nodes: %w", err)
	}
	if made != nil {
		t.capacityLoop.Writes().Wrote(key, t.capacities, made.ResourceVersion)
	}
	return nil
}
