package endpointslice

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/barque/barque/controllers/controllertest"
)

// counted counts the looks at all nodes.
type counted struct {
	listers.NodeLister
	looks *atomic.Int64
}

func (c counted) List(s labels.Selector) ([]*corev1.Node, error) {
	c.looks.Add(1)
	return c.NodeLister.List(s)
}

// TestManyNodesAreOneLook: a new leader meets every node at once. It must not read all of them for
// each.
func TestManyNodesAreOneLook(t *testing.T) {
	const many = 1000
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		for i := range many {
			objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
		}
		objects = append(objects, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "web"},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "web"}, ClusterIP: "10.43.0.9", ClusterIPs: []string{"10.43.0.9"},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Port: 80}},
			},
		})
		c := controllertest.New(t, objects...)
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		var looks atomic.Int64
		ctrl.listNodes = counted{ctrl.listNodes, &looks}
		c.Start(ctrl.Run)
		controllertest.Eventually(t, "a slice", func() bool {
			l, err := c.Client.DiscoveryV1().EndpointSlices("d").List(t.Context(),
				metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
			return err == nil && len(l.Items) == 1
		})
		synctest.Wait()
		if n := looks.Load(); n < 1 || n > 3 {
			t.Errorf("all of %d nodes were looked at %d times", many, n)
		}
	})
}
