package localprovisioner

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/localpv"
)

// Each look reads all nodes, so a node wakes it only when its own local volumes are concerned.
func TestDiskChanged(t *testing.T) {
	node := func(root, size string) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelHostname: "n"}}}
		if root != "" {
			n.Annotations = map[string]string{localpv.RootAnnotation: root}
		}
		n.Status.Capacity = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(size)}
		return n
	}
	for name, c := range map[string]struct {
		old, now *corev1.Node
		wakes    bool
	}{
		"a node with local volumes comes":    {nil, node("/d", "1Gi"), true},
		"it goes":                            {node("/d", "1Gi"), nil, true},
		"its disk grows":                     {node("/d", "1Gi"), node("/d", "2Gi"), true},
		"its directory moves":                {node("/d", "1Gi"), node("/e", "1Gi"), true},
		"it begins to have local volumes":    {node("", "1Gi"), node("/d", "1Gi"), true},
		"it ceases to":                       {node("/d", "1Gi"), node("", "1Gi"), true},
		"nothing of its disk changes":        {node("/d", "1Gi"), node("/d", "1Gi"), false},
		"a node without local volumes comes": {nil, node("", "1Gi"), false},
		"a node without local volumes goes":  {node("", "1Gi"), nil, false},
		"the disk of one without them grows": {node("", "1Gi"), node("", "2Gi"), false},
	} {
		if got := len(diskChanged(c.old, c.now)) > 0; got != c.wakes {
			t.Errorf("%s: wakes %t", name, got)
		}
	}
}
