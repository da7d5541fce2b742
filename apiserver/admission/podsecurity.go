package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	podsecurity "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"
)

// PodSecurity holds pods to the Pod Security Standards that their namespace is labelled with.
type PodSecurity struct {
	*admission.Handler
	delegate *podsecurity.Admission
}

var _ admission.ValidationInterface = (*PodSecurity)(nil)

// podSecurityMetrics are registered once, with any number of servers in a process.
var podSecurityMetrics = sync.OnceValue(func() metrics.Recorder {
	recorder := metrics.NewPrometheusRecorder(api.GetAPIVersion())
	recorder.MustRegister(legacyregistry.MustRegister)
	return recorder
})

// NewPodSecurity returns the step. config is a PodSecurityConfiguration; with nil, namespaces
// without labels allow all pods.
func NewPodSecurity(
	config io.Reader, namespaces listers.NamespaceLister, pods listers.PodLister, client kubernetes.Interface,
) (*PodSecurity, error) {
	configuration, err := load.LoadFromReader(config)
	if err != nil {
		return nil, err
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("checks of the Pod Security Standards: %w", err)
	}
	delegate := &podsecurity.Admission{
		Configuration:    configuration,
		Evaluator:        evaluator,
		Metrics:          podSecurityMetrics(),
		PodSpecExtractor: podsecurity.DefaultPodSpecExtractor{},
		NamespaceGetter:  podsecurity.NamespaceGetterFromListerAndClient(namespaces, client),
		PodLister:        podsecurity.PodListerFromInformer(pods),
	}
	if err := errors.Join(delegate.CompleteConfiguration(), delegate.ValidateConfiguration()); err != nil {
		return nil, err
	}
	return &PodSecurity{admission.NewHandler(admission.Create, admission.Update), delegate}, nil
}

// Validate implements admission.ValidationInterface.
func (p *PodSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !p.concerns(a.GetResource().GroupResource()) {
		return nil
	}
	answer := p.delegate.Validate(ctx, podSecurityAttributes{a})
	for _, w := range answer.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	for key, value := range answer.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, api.AuditAnnotationPrefix+key, value)
	}
	if answer.Allowed {
		return nil
	}
	//lint:ignore ST1005 upstream's wording
	refusal := admission.NewForbidden(a, errors.New("Not allowed by PodSecurity"))
	var status *apierrors.StatusError
	if r := answer.Result; r != nil && errors.As(refusal, &status) {
		if r.Message != "" {
			status.ErrStatus.Message = r.Message
		}
		if r.Reason != "" {
			status.ErrStatus.Reason = r.Reason
		}
		if r.Details != nil {
			status.ErrStatus.Details = r.Details
		}
		if r.Code != 0 {
			status.ErrStatus.Code = r.Code
		}
	}
	return refusal
}

func (p *PodSecurity) concerns(r schema.GroupResource) bool {
	return r == corev1.Resource("namespaces") || r == corev1.Resource("pods") ||
		p.delegate.PodSpecExtractor.HasPodSpec(r)
}

// podSecurityAttributes are the attributes as the library wants them. Objects have the types of the
// API already.
type podSecurityAttributes struct{ admission.Attributes }

// GetObject implements api.Attributes.
func (a podSecurityAttributes) GetObject() (runtime.Object, error) {
	return a.Attributes.GetObject(), nil
}

// GetOldObject implements api.Attributes.
func (a podSecurityAttributes) GetOldObject() (runtime.Object, error) {
	return a.Attributes.GetOldObject(), nil
}

// GetOperation implements api.Attributes.
func (a podSecurityAttributes) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(a.Attributes.GetOperation())
}

// GetUserName implements api.Attributes.
func (a podSecurityAttributes) GetUserName() string { return a.GetUserInfo().GetName() }
