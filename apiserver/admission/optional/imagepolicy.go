package optional

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/barque/barque/apiserver/configfile"
)

// ImagePolicy asks a backend whether the images of a pod may run, by the ImageReview of
// imagepolicy.k8s.io/v1alpha1. Unlike that of Kubernetes it sends the images of volumes as well, it
// does not send an update without a new image, and it writes nothing into a pod that was let
// through because the backend failed: the audit log has that.
type ImagePolicy struct {
	*admission.Handler
	backend  *webhook.GenericWebhook
	verdicts *cache.LRUExpireCache // v1alpha1.ImageReviewStatus by the digest of a spec
	config   imagePolicy
}

var _ admission.ValidationInterface = (*ImagePolicy)(nil)

// imagePolicy is the configuration, in the form of Kubernetes: TTLs in seconds, the time between
// two calls in milliseconds, 0 for the default and -1 for none.
type imagePolicy struct {
	KubeConfigFile string `json:"kubeConfigFile"`
	AllowTTL       int64  `json:"allowTTL"`
	DenyTTL        int64  `json:"denyTTL"`
	RetryBackoff   int64  `json:"retryBackoff"`
	DefaultAllow   bool   `json:"defaultAllow"`

	allowed, denied, retry time.Duration
}

const (
	// auditPrefix is the prefix of the annotations of audit events.
	auditPrefix = "imagepolicywebhook.image-policy.k8s.io/"
	failedOpen  = auditPrefix + "failed-open"
	// forBackend is a part of the names of annotations that the backend sees.
	forBackend = ".image-policy.k8s.io/"
	// the number of cached verdicts
	mostVerdicts = 1024
)

// NewImagePolicy returns the step.
func NewImagePolicy(config io.Reader) (*ImagePolicy, error) {
	var c struct {
		ImagePolicy imagePolicy `json:"imagePolicy"`
	}
	if err := decode(config, &c); err != nil {
		return nil, err
	}
	p := &ImagePolicy{Handler: admission.NewHandler(admission.Create, admission.Update),
		verdicts: cache.NewLRUExpireCache(mostVerdicts), config: c.ImagePolicy}
	if err := p.config.complete(); err != nil {
		return nil, fmt.Errorf("imagePolicy.%w", err)
	}
	client, err := configfile.Webhook(p.config.KubeConfigFile)
	if err != nil {
		return nil, fmt.Errorf("imagePolicy.kubeConfigFile: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	p.backend, err = webhook.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), client,
		[]schema.GroupVersion{v1alpha1.SchemeGroupVersion}, webhook.DefaultRetryBackoffWithInitialDelay(p.config.retry))
	return p, err
}

func (c *imagePolicy) complete() error {
	if c.KubeConfigFile == "" {
		return errors.New("kubeConfigFile: Required value: the path of a kubeconfig that leads to the backend")
	}
	for _, d := range []struct {
		name            string
		value           int64
		unit            time.Duration
		least, most, by time.Duration
		into            *time.Duration
	}{
		{"allowTTL", c.AllowTTL, time.Second, time.Second, 30 * time.Minute, 5 * time.Minute, &c.allowed},
		{"denyTTL", c.DenyTTL, time.Second, time.Second, 30 * time.Minute, 30 * time.Second, &c.denied},
		{"retryBackoff", c.RetryBackoff, time.Millisecond, time.Millisecond, 5 * time.Minute, 500 * time.Millisecond,
			&c.retry},
	} {
		switch {
		case d.value == -1:
		case d.value == 0:
			*d.into = d.by
		case d.value < int64(d.least/d.unit) || d.value > int64(d.most/d.unit):
			return fmt.Errorf("%s: Invalid value: %d: want %d to %d (of %s), 0 for the default, or -1 for none", d.name,
				d.value, d.least/d.unit, d.most/d.unit, d.unit)
		default:
			*d.into = time.Duration(d.value) * d.unit
		}
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p *ImagePolicy) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	spec, err := reviewOf(a)
	if err != nil || spec == nil {
		return err
	}
	status, err := p.review(ctx, spec)
	if err != nil {
		var down *downError
		open := p.config.DefaultAllow && errors.As(err, &down)
		klog.FromContext(ctx).Info("the backend of the image policy gave no verdict", "letThrough", open, "namespace",
			a.GetNamespace(), "err", err)
		if !open {
			return admission.NewForbidden(a, fmt.Errorf("the image policy's backend %w", err))
		}
		return a.AddAnnotation(failedOpen, "true")
	}
	for name, value := range status.AuditAnnotations {
		if err := a.AddAnnotation(auditPrefix+name, value); err != nil {
			klog.FromContext(ctx).Info("an annotation of the image policy's backend cannot be in the audit log", "name",
				name, "err", err)
		}
	}
	switch {
	case status.Allowed:
		return nil
	case status.Reason == "":
		return admission.NewForbidden(a, errors.New("one or more images rejected by webhook backend"))
	default:
		return admission.NewForbidden(a,
			fmt.Errorf("image policy webhook backend denied one or more images: %s", status.Reason))
	}
}

// reviewOf returns the images that a request brings, or nil.
func reviewOf(a admission.Attributes) (*v1alpha1.ImageReviewSpec, error) {
	if sub := a.GetSubresource(); a.GetResource().GroupResource() != corev1.Resource("pods") ||
		sub != "" && sub != "ephemeralcontainers" {
		return nil, nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return nil,
			apierrors.NewBadRequest(fmt.Sprintf("the request is about pods, and its object is a %T", a.GetObject()))
	}
	images := imageNames(pod)
	if old, ok := a.GetOldObject().(*corev1.Pod); ok && a.GetOperation() == admission.Update &&
		!bringsNew(images, imageNames(old)) {
		return nil, nil
	}
	spec := &v1alpha1.ImageReviewSpec{Namespace: a.GetNamespace()}
	for _, name := range images {
		spec.Containers = append(spec.Containers, v1alpha1.ImageReviewContainerSpec{Image: name})
	}
	for name, value := range pod.Annotations {
		if strings.Contains(name, forBackend) {
			if spec.Annotations == nil {
				spec.Annotations = map[string]string{}
			}
			spec.Annotations[name] = value
		}
	}
	return spec, nil
}

// imageNames returns the images of a pod, each once.
func imageNames(pod *corev1.Pod) []string {
	var names []string
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].Image)
	}
	for i := range pod.Spec.InitContainers {
		add(pod.Spec.InitContainers[i].Image)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].Image)
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			add(v.Reference)
		}
	}
	return names
}

func bringsNew(images, old []string) bool {
	return slices.ContainsFunc(images, func(name string) bool { return !slices.Contains(old, name) })
}

// downError is returned if the backend is unreachable or overloaded, or has failed. The author of a
// pod can bring about other answers, as by annotations that are too long for a front. They are no
// reason to let the pod through.
type downError struct{ err error }

func (e *downError) Error() string { return "did not answer: " + e.err.Error() }
func (e *downError) Unwrap() error { return e.err }

// failure returns the error of a call, nil for an answer. The caller may end the call, by a timeout
// in its request: that is no failure of the backend.
func failure(ctx context.Context, result rest.Result) error {
	var code int
	result.StatusCode(&code)
	err := result.Error()
	switch {
	case err == nil && code >= http.StatusOK && code < http.StatusMultipleChoices:
		return nil
	case err == nil && code != 0:
		return fmt.Errorf("answered with status %d", code)
	case err == nil, ctx.Err() != nil:
		return fmt.Errorf("was not waited for: %w", errors.Join(err, context.Cause(ctx)))
	}
	var status apierrors.APIStatus
	if code == 0 && errors.As(err, &status) {
		code = int(status.Status().Code)
	}
	if code == 0 || code == http.StatusTooManyRequests || code >= http.StatusInternalServerError {
		return &downError{err}
	}
	return fmt.Errorf("answered with status %d: %w", code, err)
}

// review returns the backend's verdict, or the cached one.
func (p *ImagePolicy) review(ctx context.Context, spec *v1alpha1.ImageReviewSpec) (v1alpha1.ImageReviewStatus, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return v1alpha1.ImageReviewStatus{}, fmt.Errorf("cannot be asked: %w", err)
	}
	key := sha256.Sum256(text) // the text may have 256 KiB of annotations
	if known, ok := p.verdicts.Get(key); ok {
		return known.(v1alpha1.ImageReviewStatus), nil
	}
	review := &v1alpha1.ImageReview{Spec: *spec}
	result := p.backend.WithExponentialBackoff(ctx, func() rest.Result {
		return p.backend.RestClient.Post().Body(review).Do(ctx)
	})
	if err := failure(ctx, result); err != nil {
		return v1alpha1.ImageReviewStatus{}, err
	}
	if err := result.Into(review); err != nil {
		return v1alpha1.ImageReviewStatus{}, fmt.Errorf("gave an answer that is no ImageReview: %w", err)
	}
	ttl := p.config.denied
	if review.Status.Allowed {
		ttl = p.config.allowed
	}
	if ttl > 0 {
		p.verdicts.Add(key, review.Status, ttl)
	}
	return review.Status, nil
}
