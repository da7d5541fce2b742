package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	clustertest "github.com/barque/barque/cluster-test"
)

// pull makes every node have every image, by a pod on each with a container of each, so that no
// spec waits for one. Whether these containers run does not matter.
func pull(ctx context.Context, client kubernetes.Interface, nodes []string, images []name.Tag) error {
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	for _, node := range nodes {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pull-" + node},
			Spec:       corev1.PodSpec{NodeName: node, RestartPolicy: corev1.RestartPolicyNever},
		}
		for i, image := range images {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
				Name: fmt.Sprintf("c%d", i), Image: image.Name(), Command: []string{"/bin/true"},
			})
		}
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, node := range nodes {
		err := clustertest.Poll(ctx, 5*time.Minute, func(ctx context.Context) error {
			pod, err := pods.Get(ctx, "pull-"+node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return pulled(pod)
		})
		if err != nil {
			return fmt.Errorf("pull the images on %s: %w", node, err)
		}
	}
	for _, node := range nodes {
		if err := pods.Delete(ctx, "pull-"+node, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return clustertest.Poll(ctx, 2*time.Minute, func(ctx context.Context) error {
		left, err := pods.List(ctx, metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are left in the namespace default", len(left.Items))
		}
		return err
	})
}

// zones is how many zones the nodes are in, for specs outside of conformance that need three.
const zones = 3

// spread puts the nodes into zones, by turns.
func spread(ctx context.Context, client kubernetes.Interface, nodes []string) error {
	for i, node := range nodes {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"z%d"}}}`, corev1.LabelTopologyZone, i%zones+1)
		if _, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("put %s into a zone: %w", node, err)
		}
	}
	return nil
}

// makePool gives each Service of type LoadBalancer an address of its own, in the nodes' network.
// Specs run side by side, and a port of the nodes' addresses belongs to one Service.
func makePool(ctx context.Context, c *clustertest.Cluster) error {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, c.Nodes()[0], metav1.GetOptions{})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(node.Status.Addresses,
		func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	if i < 0 {
		return fmt.Errorf("node %s has no internal address", node.Name)
	}
	at, err := netip.ParseAddr(node.Status.Addresses[i].Address)
	if err != nil || !at.Is4() {
		return fmt.Errorf("node %s has the address %s: want one of IPv4", node.Name, node.Status.Addresses[i].Address)
	}
	first, last := at.As4(), at.As4()
	first[3], last[3] = 200, 250
	pool := fmt.Sprintf("apiVersion: edge.barque.io/v1\nkind: AddressPool\nmetadata: {name: specs}\n"+
		"spec: {addresses: [%s-%s]}\n", netip.AddrFrom4(first), netip.AddrFrom4(last))
	return clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error { // the definition comes after the API
		return c.KubectlResult(ctx, pool, "apply", "-f", "-").Error
	})
}

// pulled is an error that names the images that the pod's node has not got.
func pulled(pod *corev1.Pod) error {
	var lacking []string
	for _, c := range pod.Spec.Containers {
		i := slices.IndexFunc(pod.Status.ContainerStatuses,
			func(s corev1.ContainerStatus) bool { return s.Name == c.Name })
		if i < 0 {
			lacking = append(lacking, c.Image)
		} else if s := pod.Status.ContainerStatuses[i]; s.ImageID == "" {
			why := ""
			if s.State.Waiting != nil && s.State.Waiting.Message != "" {
				why = " (" + s.State.Waiting.Message + ")"
			}
			lacking = append(lacking, c.Image+why)
		}
	}
	if len(lacking) > 0 {
		return fmt.Errorf("not there: %s", strings.Join(lacking, ", "))
	}
	return nil
}

// present returns which of all that the parts need the cluster has.
func present(ctx context.Context, client kubernetes.Interface, parts []part) (map[string]bool, error) {
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		return nil, fmt.Errorf("ask which resources are served: %w", err)
	}
	has := map[string]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			has[resourceName(r.Name, gv.Group)] = true
		}
	}
	for _, p := range parts {
		for _, need := range p.needs {
			ref, ok := strings.CutPrefix(need, servicePrefix)
			if !ok {
				continue
			}
			namespace, service, _ := strings.Cut(ref, "/")
			switch _, err := client.CoreV1().Services(namespace).Get(ctx, service, metav1.GetOptions{}); {
			case err == nil:
				has[need] = true
			case !apierrors.IsNotFound(err):
				return nil, err
			}
		}
	}
	if !has["pods"] {
		return nil, errors.New("discovery names no pods: its other answers cannot be believed")
	}
	return has, nil
}

const servicePrefix = "service:"

// resourceName is the name of a resource as kubectl has it: pods, jobs.batch, jobs.batch/status.
func resourceName(resource, group string) string {
	resource, sub, _ := strings.Cut(resource, "/")
	if group != "" {
		resource += "." + group
	}
	if sub != "" {
		resource += "/" + sub
	}
	return resource
}
