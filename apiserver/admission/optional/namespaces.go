package optional

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
)

// Namespaces finds the namespace of a request.
type Namespaces struct {
	Lister listers.NamespaceLister
	Client kubernetes.Interface
}

func (n Namespaces) get(ctx context.Context, name string) (*corev1.Namespace, error) {
	if ns, err := n.Lister.Get(name); err == nil {
		return ns, nil
	}
	return n.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
}

func inNamespace(a admission.Attributes) bool {
	return a.GetNamespace() != "" && a.GetResource().GroupResource() != corev1.Resource("namespaces")
}

// NamespaceExists refuses requests in a namespace that is not there.
type NamespaceExists struct {
	*admission.Handler
	namespaces Namespaces
}

// NamespaceProvision makes the namespace of a new object that has none.
type NamespaceProvision struct {
	*admission.Handler
	namespaces Namespaces
}

var (
	_ admission.ValidationInterface = (*NamespaceExists)(nil)
	_ admission.MutationInterface   = (*NamespaceProvision)(nil)
)

// NewNamespaceExists returns the step.
func NewNamespaceExists(n Namespaces) *NamespaceExists {
	return &NamespaceExists{admission.NewHandler(admission.Create, admission.Update, admission.Delete), n}
}

// NewNamespaceProvision returns the step.
func NewNamespaceProvision(n Namespaces) *NamespaceProvision {
	return &NamespaceProvision{admission.NewHandler(admission.Create), n}
}

// Validate implements admission.ValidationInterface.
func (e *NamespaceExists) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !inNamespace(a) {
		return nil
	}
	_, err := e.namespaces.get(ctx, a.GetNamespace())
	if err != nil && !apierrors.IsNotFound(err) {
		return apierrors.NewInternalError(err)
	}
	return err
}

// Admit implements admission.MutationInterface.
func (p *NamespaceProvision) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !inNamespace(a) || a.IsDryRun() {
		return nil
	}
	if _, err := p.namespaces.Lister.Get(a.GetNamespace()); err == nil {
		return nil
	}
	_, err := p.namespaces.Client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.GetNamespace()}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return admission.NewForbidden(a, err)
	}
	return nil
}
