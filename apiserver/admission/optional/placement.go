package optional

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"sigs.k8s.io/yaml"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/groups/podtemplate"
)

// NodeSelectors keeps the pods of a namespace on the nodes that are meant for it.
type NodeSelectors struct {
	*admission.Handler
	namespaces Namespaces
	selectors  map[string]labels.Set // by namespace, and defaultSelector
}

// TolerationLimits gives pods the tolerations of their namespace, and refuses others.
type TolerationLimits struct {
	*admission.Handler
	namespaces Namespaces
	config     tolerationConfig
}

var (
	_ admission.MutationInterface   = (*NodeSelectors)(nil)
	_ admission.ValidationInterface = (*NodeSelectors)(nil)
	_ admission.MutationInterface   = (*TolerationLimits)(nil)
	_ admission.ValidationInterface = (*TolerationLimits)(nil)
)

// decode reads the configuration of a step; without one into stays as it is.
func decode(config io.Reader, into any) error {
	if config == nil {
		return nil
	}
	text, err := io.ReadAll(config)
	if err != nil {
		return err
	}
	return yaml.UnmarshalStrict(text, into)
}

const (
	defaultSelector    = "clusterDefaultNodeSelector"
	selectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"
)

// NewNodeSelectors returns the step. config has the selectors of namespaces, as labels with commas
// between them.
func NewNodeSelectors(config io.Reader, n Namespaces) (*NodeSelectors, error) {
	var c struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if err := decode(config, &c); err != nil {
		return nil, err
	}
	selectors := map[string]labels.Set{}
	for name, text := range c.Selectors {
		var err error
		if selectors[name], err = labels.ConvertSelectorToLabelsMap(text); err != nil {
			return nil, fmt.Errorf("podNodeSelectorPluginConfig: %s: %w", name, err)
		}
	}
	return &NodeSelectors{admission.NewHandler(admission.Create), n, selectors}, nil
}

// Admit implements admission.MutationInterface.
func (s *NodeSelectors) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	pod := barqueadmission.PodOf(a)
	if pod == nil {
		return nil
	}
	of, err := s.of(ctx, a, pod)
	if err != nil {
		return err
	}
	pod.Spec.NodeSelector = labels.Merge(of, pod.Spec.NodeSelector)
	return s.Validate(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (s *NodeSelectors) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := barqueadmission.PodOf(a)
	if pod == nil {
		return nil
	}
	if _, err := s.of(ctx, a, pod); err != nil {
		return err
	}
	allowed := s.selectors[a.GetNamespace()]
	for key, value := range pod.Spec.NodeSelector {
		if is, ok := allowed[key]; len(allowed) > 0 && (!ok || is != value) {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), pod.Name,
				errors.New("pod node label selector labels conflict with its namespace whitelist"))
		}
	}
	return nil
}

// of returns the selector of a namespace, if it goes with the pod's.
func (s *NodeSelectors) of(ctx context.Context, a admission.Attributes, pod *corev1.Pod) (labels.Set, error) {
	ns, err := s.namespaces.get(ctx, a.GetNamespace())
	if err != nil {
		return nil, err
	}
	of := maps.Clone(s.selectors[defaultSelector])
	if text, ok := ns.Annotations[selectorAnnotation]; ok {
		if of, err = labels.ConvertSelectorToLabelsMap(text); err != nil {
			return nil, err
		}
	}
	if labels.Conflicts(of, pod.Spec.NodeSelector) {
		return nil,
			apierrors.NewForbidden(a.GetResource().GroupResource(), pod.Name,
				errors.New("pod node label selector conflicts with its namespace node label selector"))
	}
	return of, nil
}

const (
	tolerationsAnnotation = "scheduler.alpha.kubernetes.io/defaultTolerations"
	whitelistAnnotation   = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

type tolerationConfig struct {
	metav1.TypeMeta `json:",inline"`
	Default         []corev1.Toleration `json:"default"`
	Whitelist       []corev1.Toleration `json:"whitelist"`
}

// NewTolerationLimits returns the step. config is a Configuration of
// podtolerationrestriction.admission.k8s.io, for namespaces without annotations.
func NewTolerationLimits(config io.Reader, n Namespaces) (*TolerationLimits, error) {
	t := &TolerationLimits{Handler: admission.NewHandler(admission.Create, admission.Update), namespaces: n}
	if err := decode(config, &t.config); err != nil {
		return nil, err
	}
	return t, nil
}

// Admit implements admission.MutationInterface.
func (t *TolerationLimits) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	pod := barqueadmission.PodOf(a)
	if pod == nil {
		return nil
	}
	var more []corev1.Toleration
	if a.GetOperation() == admission.Create {
		of, said, err := t.of(ctx, a, tolerationsAnnotation)
		if err != nil {
			return err
		}
		if more = of; !said {
			more = t.config.Default
		}
	}
	if podtemplate.QOSClass(&pod.Spec) != corev1.PodQOSBestEffort {
		more = append(slices.Clone(more),
			corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoSchedule})
	}
	if len(more) > 0 {
		pod.Spec.Tolerations = barqueadmission.MergeTolerations(pod.Spec.Tolerations, more)
	}
	return t.Validate(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (t *TolerationLimits) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := barqueadmission.PodOf(a)
	if pod == nil || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, said, err := t.of(ctx, a, whitelistAnnotation)
	if err != nil {
		return err
	}
	scope := "namespace"
	if !said {
		allowed, scope = t.config.Whitelist, "cluster"
	}
	if len(allowed) == 0 {
		return nil
	}
	for i := range pod.Spec.Tolerations {
		if !slices.ContainsFunc(allowed,
			func(w corev1.Toleration) bool { return barqueadmission.Includes(&w, &pod.Spec.Tolerations[i]) }) {
			return admission.NewForbidden(a,
				fmt.Errorf(
					"pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope))
		}
	}
	return nil
}

// of returns the tolerations in an annotation of the pod's namespace, and whether it has it.
func (t *TolerationLimits) of(
	ctx context.Context, a admission.Attributes, annotation string,
) (list []corev1.Toleration, said bool, err error) {
	ns, err := t.namespaces.get(ctx, a.GetNamespace())
	if err != nil {
		return nil, false, err
	}
	text, said := ns.Annotations[annotation]
	if text != "" {
		err = json.Unmarshal([]byte(text), &list)
	}
	return list, said, err
}
