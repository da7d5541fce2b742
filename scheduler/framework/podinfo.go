package framework

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// PodInfo is a pod with derived data: its requests and its parsed affinity terms. It is immutable.
type PodInfo struct {
	pod       *v1.Pod
	resources fwk.PodResource
	owner     types.UID

	requiredAffinity      []fwk.AffinityTerm
	requiredAntiAffinity  []fwk.AffinityTerm
	preferredAffinity     []fwk.WeightedAffinityTerm
	preferredAntiAffinity []fwk.WeightedAffinityTerm
}

var _ fwk.PodInfo = (*PodInfo)(nil)

// NewPodInfo derives a PodInfo. The error is about affinity terms that do not parse. The PodInfo is
// usable then, without the terms of that kind: a running pod occupies its node whatever its terms
// say.
func NewPodInfo(pod *v1.Pod) (*PodInfo, error) {
	p := &PodInfo{pod: pod, resources: PodResource(pod)}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		p.owner = owner.UID
	}
	if pod.Spec.Affinity == nil {
		return p, nil
	}
	return p, p.parseAffinity(pod.Spec.Affinity)
}

func (p *PodInfo) parseAffinity(a *v1.Affinity) error {
	var err error
	if pa := a.PodAffinity; pa != nil {
		if p.requiredAffinity, err = fwk.GetAffinityTerms(p.pod,
			pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("required pod affinity: %w", err)
		}
		if p.preferredAffinity, err = fwk.GetWeightedAffinityTerms(p.pod,
			pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("preferred pod affinity: %w", err)
		}
	}
	if pa := a.PodAntiAffinity; pa != nil {
		if p.requiredAntiAffinity, err = fwk.GetAffinityTerms(p.pod,
			pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("required pod anti-affinity: %w", err)
		}
		if p.preferredAntiAffinity, err = fwk.GetWeightedAffinityTerms(p.pod,
			pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("preferred pod anti-affinity: %w", err)
		}
	}
	return nil
}

// OnNode returns the PodInfo of the same pod placed on a node. The pod's other fields are shared
// with the original, so neither may be changed.
func (p *PodInfo) OnNode(node string) *PodInfo {
	pod := *p.pod
	pod.Spec.NodeName = node
	c := *p
	c.pod = &pod
	return &c
}

// GetPod returns the pod. The caller must not change it.
func (p *PodInfo) GetPod() *v1.Pod { return p.pod }

// Owner returns the UID of the pod's controller, "" when it has none.
func (p *PodInfo) Owner() types.UID { return p.owner }

// GetRequiredAffinityTerms returns the parsed terms.
func (p *PodInfo) GetRequiredAffinityTerms() []fwk.AffinityTerm { return p.requiredAffinity }

// GetRequiredAntiAffinityTerms returns the parsed terms.
func (p *PodInfo) GetRequiredAntiAffinityTerms() []fwk.AffinityTerm { return p.requiredAntiAffinity }

// GetPreferredAffinityTerms returns the parsed terms with their weights.
func (p *PodInfo) GetPreferredAffinityTerms() []fwk.WeightedAffinityTerm { return p.preferredAffinity }

// GetPreferredAntiAffinityTerms returns the parsed terms with their weights.
func (p *PodInfo) GetPreferredAntiAffinityTerms() []fwk.WeightedAffinityTerm {
	return p.preferredAntiAffinity
}

// CalculateResource returns the pod's requests.
func (p *PodInfo) CalculateResource() fwk.PodResource { return p.resources }

func (p *PodInfo) hasAffinity() bool {
	return len(p.requiredAffinity)+len(p.requiredAntiAffinity)+
		len(p.preferredAffinity)+len(p.preferredAntiAffinity) > 0
}

func defaultRequests() v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPURequest, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(DefaultMemoryRequest, resource.BinarySI),
	}
}
