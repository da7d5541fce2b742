package admission

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Victims returns pods whose end makes room for a critical pod that Fit refuses: those of the
// lowest priority, and no more than necessary. Critical pods are never among them, nor are pods of
// the same or a higher priority. It is empty when all of them together would not make room.
func Victims(in Input) []*v1.Pod {
	if !IsCritical(in.Pod) || Fit(&in) == nil {
		return nil
	}
	var candidates []*v1.Pod
	for _, other := range in.Others {
		if !IsCritical(other) && (IsStatic(in.Pod) || priority(other) < priority(in.Pod)) {
			candidates = append(candidates, other)
		}
	}
	slices.SortStableFunc(candidates, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(priority(a), priority(b)), cmp.Compare(class(a), class(b)))
	})
	fitsWithout := func(gone []*v1.Pod) bool {
		left := in
		left.Others = slices.DeleteFunc(slices.Clone(in.Others),
			func(p *v1.Pod) bool { return slices.Contains(gone, p) })
		return Fit(&left) == nil
	}
	var victims []*v1.Pod
	for _, pod := range candidates {
		if victims = append(victims, pod); fitsWithout(victims) {
			break
		}
	}
	if !fitsWithout(victims) {
		return nil
	}
	// Pods of a higher priority may stay if the others suffice.
	for i := len(victims) - 1; i >= 0; i-- {
		if fewer := slices.Delete(slices.Clone(victims), i, i+1); fitsWithout(fewer) {
			victims = fewer
		}
	}
	return victims
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// class orders pods by their QoS class.
func class(pod *v1.Pod) int {
	switch pod.Status.QOSClass {
	case v1.PodQOSGuaranteed:
		return 2
	case v1.PodQOSBestEffort:
		return 0
	}
	return 1
}
