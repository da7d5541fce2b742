package subresources

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/authn"
	"github.com/barque/barque/apiserver/resource"
)

const (
	minTokenLifetime = 10 * time.Minute
	// Tokens that the service-account admission puts into pods request this and may get more, up to
	// a year, with a warning after the requested time. So clients that do not read the file again
	// at once go on working, and so do pods while no server can issue the next token.
	extendedRequest  = 3607 * time.Second
	extendedLifetime = 365 * 24 * time.Hour
)

// Token serves serviceaccounts/token: it issues tokens of a service account.
type Token struct {
	accounts  *resource.Storage
	client    kubernetes.Interface
	issuer    *authn.Issuer
	audiences []string
	lifetimes TokenLifetimes
}

// TokenLifetimes are the rules for the lifetimes of tokens.
type TokenLifetimes struct {
	Max    time.Duration // of every token; 0 means no bound
	Extend bool          // tokens of pods get more than they request, within Max
}

var (
	_ rest.NamedCreater             = (*Token)(nil)
	_ rest.GroupVersionKindProvider = (*Token)(nil)
)

// NewToken returns the subresource of service accounts. Tokens that name no audience get
// audiences.
func NewToken(
	accounts *resource.Storage, client kubernetes.Interface, issuer *authn.Issuer, audiences []string,
	lifetimes TokenLifetimes,
) *Token {
	return &Token{accounts, client, issuer, audiences, lifetimes}
}

// New implements rest.Storage.
func (t *Token) New() runtime.Object { return &authenticationv1.TokenRequest{} }

// Destroy implements rest.Storage; the store is its parent's.
func (t *Token) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (t *Token) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
}

// Create implements rest.NamedCreater.
func (t *Token) Create(
	ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	req, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest object: %T", obj))
	}
	namespace := request.NamespaceValue(ctx)
	t.complete(req, namespace, name)
	if validate != nil {
		if err := validate(ctx, req.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	lifetime := time.Duration(*req.Spec.ExpirationSeconds) * time.Second
	if errs := validateTokenRequest(req, lifetime); len(errs) > 0 {
		return nil,
			apierrors.NewInvalid(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind(), name, errs)
	}
	got, err := t.accounts.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	binding := authn.Binding{
		Namespace: namespace, ServiceAccount: name, ServiceAccountUID: string(got.(*corev1.ServiceAccount).UID),
		Audiences: req.Spec.Audiences,
	}
	if err := t.bind(ctx, req, &binding); err != nil {
		return nil, err
	}
	if !ofSecret(req, &binding) {
		t.setLifetime(ctx, req, &binding, lifetime)
	}
	if len(options.DryRun) > 0 {
		return req, nil
	}
	if ofSecret(req, &binding) {
		token, err := t.issuer.IssueLegacy(binding)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		req.Status = authenticationv1.TokenRequestStatus{Token: token}
		return req, nil
	}
	token, id, expires, err := t.issuer.Issue(binding)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, id)
	if binding.WarnAfter > 0 {
		// The holder gets the requested time, so that it refreshes the token by then.
		expires = expires.Add(binding.WarnAfter - binding.Lifetime)
	}
	req.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires)}
	return req, nil
}

// complete fills in fields that the request leaves open.
func (t *Token) complete(req *authenticationv1.TokenRequest, namespace, name string) {
	req.Namespace, req.Name = namespace, name
	req.Status = authenticationv1.TokenRequestStatus{}
	if req.Spec.ExpirationSeconds == nil {
		hour := int64(time.Hour.Seconds())
		req.Spec.ExpirationSeconds = &hour
	}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = t.audiences
	}
}

func validateTokenRequest(req *authenticationv1.TokenRequest, lifetime time.Duration) field.ErrorList {
	at := field.NewPath("spec", "expirationSeconds")
	switch {
	case lifetime < minTokenLifetime:
		return field.ErrorList{
			field.Invalid(at, *req.Spec.ExpirationSeconds, "may not specify a duration less than 10 minutes")}
	case *req.Spec.ExpirationSeconds > 1<<32:
		return field.ErrorList{
			field.Invalid(at, *req.Spec.ExpirationSeconds, "may not specify a duration larger than 2^32 seconds")}
	}
	return nil
}

// setLifetime bounds the requested lifetime, and extends the tokens of pods.
func (t *Token) setLifetime(
	ctx context.Context, req *authenticationv1.TokenRequest, b *authn.Binding, asked time.Duration,
) {
	b.Lifetime = asked
	most := t.lifetimes.Max
	if most > 0 && asked > most {
		b.Lifetime = most
		seconds := int64(most.Seconds())
		req.Spec.ExpirationSeconds = &seconds
		warning.AddWarning(ctx, "",
			fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", int64(asked.Seconds()), seconds))
	}
	if !t.lifetimes.Extend || asked != extendedRequest || b.PodName == "" || !t.forItself(b.Audiences) {
		return
	}
	extended := time.Duration(extendedLifetime)
	if most > 0 {
		extended = min(extended, most)
	}
	if extended > asked {
		b.Lifetime, b.WarnAfter = extended, asked
	}
}

func (t *Token) forItself(audiences []string) bool {
	return slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(t.audiences, a) })
}

// bind finds the object that the token is to be bound to and checks that it is the right one.
func (t *Token) bind(ctx context.Context, req *authenticationv1.TokenRequest, b *authn.Binding) error {
	ref := req.Spec.BoundObjectRef
	if ref == nil {
		return nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	var meta metav1.Object
	var err error
	switch {
	case gvk.Group == "" && gvk.Kind == "Pod":
		meta, err = t.bindPod(ctx, req, b)
	case gvk.Group == "" && gvk.Kind == "Secret":
		var secret *corev1.Secret
		secret, err = t.client.CoreV1().Secrets(b.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		meta = secret
		if err == nil {
			b.SecretName, b.SecretUID = secret.Name, string(secret.UID)
			err = checkSecret(req, b, secret)
		}
	case gvk.Group == "" && gvk.Kind == "Node":
		var node *corev1.Node
		node, err = t.client.CoreV1().Nodes().Get(ctx, ref.Name, metav1.GetOptions{})
		meta = node
		if err == nil {
			b.NodeName, b.NodeUID = node.Name, string(node.UID)
		}
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount to object of type %s", gvk))
	}
	if err != nil {
		return err
	}
	return matches(ref.UID, ref.Kind, meta)
}

// ofSecret reports that a request is for the token that a Secret of type
// kubernetes.io/service-account-token is to hold: it is bound to a Secret, and its audience is the
// issuer of such tokens. That one has no end: it is good as long as the Secret holds it.
func ofSecret(req *authenticationv1.TokenRequest, b *authn.Binding) bool {
	return b.SecretName != "" && len(req.Spec.Audiences) == 1 && req.Spec.Audiences[0] == authn.LegacyIssuer
}

// checkSecret refuses the token of a Secret that is not made for it.
func checkSecret(req *authenticationv1.TokenRequest, b *authn.Binding, secret *corev1.Secret) error {
	if !ofSecret(req, b) ||
		secret.Type == corev1.SecretTypeServiceAccountToken &&
			secret.Annotations[corev1.ServiceAccountNameKey] == b.ServiceAccount {
		return nil
	}
	return apierrors.NewBadRequest(
		fmt.Sprintf(
			"secret %q of type %q does not hold tokens of serviceaccount %q: give it the type %s and the annotation %s",
			secret.Name, secret.Type, b.ServiceAccount, corev1.SecretTypeServiceAccountToken,
			corev1.ServiceAccountNameKey))
}

func matches(want types.UID, kind string, obj metav1.Object) error {
	if want != "" && want != obj.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{Resource: kind}, obj.GetName(),
			fmt.Errorf(
				"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", want))
	}
	return nil
}

func (t *Token) bindPod(
	ctx context.Context, req *authenticationv1.TokenRequest, b *authn.Binding,
) (metav1.Object, error) {
	pod, err := t.client.CoreV1().Pods(b.Namespace).Get(ctx, req.Spec.BoundObjectRef.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if pod.Spec.ServiceAccountName != b.ServiceAccount {
		return nil,
			apierrors.NewBadRequest(
				fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name",
					b.ServiceAccount))
	}
	b.PodName, b.PodUID = pod.Name, string(pod.UID)
	if pod.Spec.NodeName == "" {
		return pod, nil
	}
	// The token names the node for information; the node may be gone by now.
	node, err := t.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	switch {
	case err == nil:
		b.NodeName, b.NodeUID = node.Name, string(node.UID)
	case apierrors.IsNotFound(err):
		b.NodeName = pod.Spec.NodeName
	default:
		return nil, err
	}
	return pod, nil
}
