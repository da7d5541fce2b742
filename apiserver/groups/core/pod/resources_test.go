package pod

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestPodResources(t *testing.T) {
	for name, c := range map[string]struct{ pod, want string }{
		"none": {`{spec: {containers: [{name: a, resources: {requests: {cpu: 1}}}]}}`, ``},
		"from limit": {`{spec: {resources: {limits: {cpu: 4}}, containers: [{name: a}]}}`,
			`{limits: {cpu: 4}, requests: {cpu: 4}}`},
		"from containers": {
			`{spec: {resources: {limits: {cpu: 4, memory: 4Gi}}, containers: [{name: a, resources: {requests: {cpu: 1, memory: 1Mi}}}, {name: b, resources: {requests: {cpu: 1}}}]}}`,
			`{limits: {cpu: 4, memory: 4Gi}, requests: {cpu: 2, memory: 1Mi}}`},
		"own request": {
			`{spec: {resources: {requests: {cpu: 3}}, containers: [{name: a, resources: {requests: {cpu: 1}}}]}}`,
			`{requests: {cpu: 3}}`},
		"limits of all": {
			`{spec: {resources: {requests: {cpu: 3, memory: 1Gi}}, containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: b, resources: {limits: {cpu: 1, memory: 1Gi}}}]}}`,
			`{requests: {cpu: 3, memory: 1Gi}, limits: {cpu: 3, memory: 2Gi}}`},
		"limits of one": {
			`{spec: {resources: {requests: {cpu: 3}}, containers: [{name: a, resources: {limits: {cpu: 1}}}, {name: b}]}}`, `{requests: {cpu: 3}}`},
		"huge pages": {
			`{spec: {resources: {requests: {cpu: 1}}, containers: [{name: a, resources: {limits: {hugepages-2Mi: 4Mi}, requests: {hugepages-2Mi: 4Mi}}}]}}`,
			`{requests: {cpu: 1, hugepages-2Mi: 4Mi}, limits: {hugepages-2Mi: 4Mi}}`},
	} {
		t.Run(name, func(t *testing.T) {
			p := grouptest.Parse[corev1.Pod](t, c.pod)
			defaultPodResources(p)
			var want *corev1.ResourceRequirements
			if c.want != "" {
				want = grouptest.Parse[corev1.Pod](t, "{spec: {resources: "+c.want+"}}").Spec.Resources
			}
			if diff := cmp.Diff(want, p.Spec.Resources); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
