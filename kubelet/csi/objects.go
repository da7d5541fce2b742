package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// nodeIDs is the annotation of a Node with the drivers' names for it.
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// objects writes the drivers' properties of this node into its Node and its CSINode object.
type objects struct {
	client kubernetes.Interface
	node   string
	mu     sync.Mutex // one write at a time
}

// ensure makes the CSINode object of the Node object, and returns it. One that was another node's
// of the same name is made anew.
func (o *objects) ensure(ctx context.Context) (*storagev1.CSINode, error) {
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	nodes := o.client.StorageV1().CSINodes()
	have, err := nodes.Get(ctx, o.node, metav1.GetOptions{})
	if err == nil &&
		slices.ContainsFunc(have.OwnerReferences,
			func(r metav1.OwnerReference) bool { return r.Kind == "Node" && r.UID == node.UID }) {
		return have, nil
	}
	if err == nil {
		err = nodes.Delete(ctx, o.node, *metav1.NewPreconditionDeleteOptions(string(have.UID)))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	return nodes.Create(ctx,
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: o.node, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		}}}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{}}}, metav1.CreateOptions{})
}

// install names a driver in both objects. The node's labels say where it is in the driver's
// topology.
func (o *objects) install(ctx context.Context, driver string, info *csipb.NodeGetInfoResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.annotate(ctx, driver, info.NodeId, info.AccessibleTopology.GetSegments()); err != nil {
		return err
	}
	return o.update(ctx, func(csiNode *storagev1.CSINode) {
		setDriver(csiNode, driver, info)
	})
}

// count writes how many volumes the driver takes now.
func (o *objects) count(ctx context.Context, driver string, info *csipb.NodeGetInfoResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.update(ctx, func(csiNode *storagev1.CSINode) { setDriver(csiNode, driver, info) })
}

// uninstall takes a driver out of both objects. Labels stay: volumes and pods may go by them.
func (o *objects) uninstall(ctx context.Context, driver string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.update(ctx, func(csiNode *storagev1.CSINode) {
		csiNode.Spec.Drivers = slices.DeleteFunc(csiNode.Spec.Drivers,
			func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
	})
	if err != nil {
		return err
	}
	return o.annotate(ctx, driver, "", nil)
}

// update changes the CSINode object, and writes nothing when it is right.
func (o *objects) update(ctx context.Context, change func(*storagev1.CSINode)) error {
	return retry.OnError(retry.DefaultBackoff, changed, func() error {
		have, err := o.ensure(ctx)
		if err != nil {
			return err
		}
		want := have.DeepCopy()
		change(want)
		if slices.EqualFunc(have.Spec.Drivers, want.Spec.Drivers, sameDriver) {
			return nil
		}
		_, err = o.client.StorageV1().CSINodes().Update(ctx, want, metav1.UpdateOptions{})
		return err
	})
}

// changed reports whether a write failed because the object has changed.
func changed(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

func setDriver(csiNode *storagev1.CSINode, name string, info *csipb.NodeGetInfoResponse) {
	d := storagev1.CSINodeDriver{
		Name: name, NodeID: info.NodeId, TopologyKeys: slices.Sorted(maps.Keys(info.AccessibleTopology.GetSegments())),
	}
	if info.MaxVolumesPerNode > 0 { // no number means no limit
		d.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(min(info.MaxVolumesPerNode, math.MaxInt32)))}
	}
	i := slices.IndexFunc(csiNode.Spec.Drivers, func(have storagev1.CSINodeDriver) bool { return have.Name == name })
	if i < 0 {
		csiNode.Spec.Drivers = append(csiNode.Spec.Drivers, d)
	} else {
		csiNode.Spec.Drivers[i] = d
	}
}

func sameDriver(a, b storagev1.CSINodeDriver) bool {
	count := func(d storagev1.CSINodeDriver) int32 {
		if d.Allocatable == nil || d.Allocatable.Count == nil {
			return -1
		}
		return *d.Allocatable.Count
	}
	return a.Name == b.Name && a.NodeID == b.NodeID && count(a) == count(b) &&
		slices.Equal(slices.Sorted(slices.Values(a.TopologyKeys)), slices.Sorted(slices.Values(b.TopologyKeys)))
}

// annotate writes the driver's ID for the node, which is "" for none, and the labels of its
// topology.
func (o *objects) annotate(ctx context.Context, driver, id string, topology map[string]string) error {
	nodes := o.client.CoreV1().Nodes()
	return retry.OnError(retry.DefaultBackoff, apierrors.IsConflict, func() error {
		node, err := nodes.Get(ctx, o.node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && id == "" {
			return nil
		}
		if err != nil {
			return err
		}
		patch, err := annotation(node, driver, id, topology)
		if err != nil || patch == nil {
			return err
		}
		_, err = nodes.Patch(ctx, o.node, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// annotation is the patch that puts a node's annotation and labels right, or nil.
func annotation(node *v1.Node, driver, id string, topology map[string]string) ([]byte, error) {
	ids := map[string]string{}
	if text := node.Annotations[nodeIDs]; text != "" {
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			return nil, fmt.Errorf("annotation %s of node %s: %w", nodeIDs, node.Name, err)
		}
	}
	labels := map[string]string{}
	for key, value := range topology {
		switch have, ok := node.Labels[key]; {
		case ok && have != value:
			return nil,
				fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key,
					value, key, have)
		case !ok:
			labels[key] = value
		}
	}
	if ids[driver] == id && len(labels) == 0 {
		return nil, nil
	}
	var told any // null removes the annotation
	if ids[driver] = id; id == "" {
		delete(ids, driver)
	}
	if len(ids) > 0 {
		text, err := json.Marshal(ids)
		if err != nil {
			return nil, err
		}
		told = string(text)
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": map[string]any{nodeIDs: told}, "labels": labels,
	}})
}
