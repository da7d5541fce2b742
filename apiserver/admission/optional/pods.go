package optional

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/groups/validation"
)

// AlwaysPullImages lets no pod use an image that its own credentials cannot pull.
type AlwaysPullImages struct{ *admission.Handler }

// HardAntiAffinity lets pods keep others away from their node, and from nothing larger.
type HardAntiAffinity struct{ *admission.Handler }

// ExtendedResources lets pods that request a resource of some nodes onto nodes that are kept for
// such pods by a taint of the resource's name.
type ExtendedResources struct{ *admission.Handler }

var (
	_ admission.MutationInterface   = (*AlwaysPullImages)(nil)
	_ admission.ValidationInterface = (*AlwaysPullImages)(nil)
	_ admission.ValidationInterface = (*HardAntiAffinity)(nil)
	_ admission.MutationInterface   = (*ExtendedResources)(nil)
)

// NewAlwaysPullImages returns the step.
func NewAlwaysPullImages() *AlwaysPullImages {
	return &AlwaysPullImages{admission.NewHandler(admission.Create, admission.Update)}
}

// NewHardAntiAffinity returns the step.
func NewHardAntiAffinity() *HardAntiAffinity {
	return &HardAntiAffinity{admission.NewHandler(admission.Create, admission.Update)}
}

// NewExtendedResources returns the step.
func NewExtendedResources() *ExtendedResources {
	return &ExtendedResources{admission.NewHandler(admission.Create, admission.Update)}
}

// image is a field of a pod with an image and its pull policy.
type image struct {
	name   string // "" in a volume
	policy *corev1.PullPolicy
	at     *field.Path
}

func imagesOf(pod *corev1.Pod) []image {
	var all []image
	spec := field.NewPath("spec")
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		all = append(all,
			image{c.Image, &c.ImagePullPolicy, spec.Child("initContainers").Index(i).Child("imagePullPolicy")})
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all = append(all,
			image{c.Image, &c.ImagePullPolicy, spec.Child("containers").Index(i).Child("imagePullPolicy")})
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		all = append(all,
			image{c.Image, &c.ImagePullPolicy, spec.Child("ephemeralContainers").Index(i).Child("imagePullPolicy")})
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			all = append(all, image{"", &v.PullPolicy, spec.Child("volumes").Index(i).Child("image", "pullPolicy")})
		}
	}
	return all
}

// pulling returns the images that a request brings; an update that names no new one brings none.
func pulling(a admission.Attributes) []image {
	pod := barqueadmission.PodOf(a)
	if pod == nil {
		return nil
	}
	images := imagesOf(pod)
	if old, ok := a.GetOldObject().(*corev1.Pod); ok && a.GetOperation() == admission.Update {
		was := sets.New[string]()
		for _, i := range imagesOf(old) {
			was.Insert(i.name)
		}
		if !slices.ContainsFunc(images, func(i image) bool { return i.name != "" && !was.Has(i.name) }) {
			return nil
		}
	}
	return images
}

// Admit implements admission.MutationInterface.
func (*AlwaysPullImages) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	for _, i := range pulling(a) {
		*i.policy = corev1.PullAlways
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (*AlwaysPullImages) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	var errs []error
	for _, i := range pulling(a) {
		if *i.policy != corev1.PullAlways {
			errs = append(errs,
				admission.NewForbidden(a, field.NotSupported(i.at, *i.policy, []string{string(corev1.PullAlways)})))
		}
	}
	return utilerrors.NewAggregate(errs)
}

// Validate implements admission.ValidationInterface.
func (*HardAntiAffinity) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := barqueadmission.PodOf(a)
	if pod == nil || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), pod.Name, fmt.Errorf(
				"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed",
				term.TopologyKey, corev1.LabelHostname))
		}
	}
	return nil
}

// Admit implements admission.MutationInterface.
func (*ExtendedResources) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := barqueadmission.PodOf(a)
	if pod == nil {
		return nil
	}
	names := sets.New[string]()
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if validation.IsExtendedResource(name) {
					names.Insert(string(name))
				}
			}
		}
	}
	for _, name := range sets.List(names) {
		wanted := corev1.Toleration{Key: name, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoSchedule}
		i := slices.IndexFunc(pod.Spec.Tolerations,
			func(t corev1.Toleration) bool { return t.MatchToleration(&wanted) })
		if i >= 0 {
			pod.Spec.Tolerations[i] = wanted
		} else {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, wanted)
		}
	}
	return nil
}
