package optional

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/refusals"
)

// Owners refuses to change the owners of an object unless the user may delete the object, and to
// make an owner wait for the object unless the user may change the owner's finalizers.
type Owners struct {
	*admission.Handler
	authz  authorizer.UnconditionalAuthorizer
	mapper meta.RESTMapper
}

var _ admission.ValidationInterface = (*Owners)(nil)

// NewOwners returns the step.
func NewOwners(authz authorizer.UnconditionalAuthorizer, mapper meta.RESTMapper) *Owners {
	return &Owners{admission.NewHandler(admission.Create, admission.Update), authz, mapper}
}

// Validate implements admission.ValidationInterface. The status of a pod is its node's to write.
func (o *Owners) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	is, was := ownersOf(a.GetObject()), ownersOf(a.GetOldObject())
	if a.GetResource().GroupResource() == corev1.Resource("pods") && a.GetSubresource() == "status" ||
		len(is) == len(was) && apiequality.Semantic.DeepEqual(is, was) {
		return nil
	}
	if a.GetOperation() != admission.Create {
		decision, reason, err := o.authz.Authorize(ctx, authorizer.AttributesRecord{
			User: a.GetUserInfo(), Verb: "delete", Namespace: a.GetNamespace(), Name: a.GetName(),
			ResourceRequest: true,
			APIGroup:        a.GetResource().Group, APIVersion: a.GetResource().Version,
			Resource:    a.GetResource().Resource,
			Subresource: a.GetSubresource(),
		})
		if decision != authorizer.DecisionAllow {
			return admission.NewForbidden(a,
				fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %v, %v", reason, err))
		}
	}
	return o.checkBlocking(ctx, a, is, was)
}

func ownersOf(obj runtime.Object) []metav1.OwnerReference {
	if obj == nil {
		return nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	return m.GetOwnerReferences()
}

func blocks(r metav1.OwnerReference) bool {
	return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
}

// checkBlocking checks the owners whose deletion is to wait, and did not before.
func (o *Owners) checkBlocking(ctx context.Context, a admission.Attributes, is, was []metav1.OwnerReference) error {
	blocking := slices.DeleteFunc(slices.Clone(is), func(r metav1.OwnerReference) bool {
		return !blocks(r) ||
			slices.ContainsFunc(was, func(w metav1.OwnerReference) bool { return w.UID == r.UID && blocks(w) })
	})
	if len(blocking) == 0 {
		return nil
	}
	record := authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "update", APIGroup: "*", APIVersion: "*", Resource: "*", Subresource: "finalizers",
		Name: "*", ResourceRequest: true,
	}
	if decision, _, err := o.authz.Authorize(refusals.Probing(ctx), record); err == nil &&
		decision == authorizer.DecisionAllow {
		return nil
	}
	for _, r := range blocking {
		mappings, err := o.mappings(r)
		if err != nil {
			return admission.NewForbidden(a,
				fmt.Errorf(
					"cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %w", r.APIVersion, r.Kind, err))
		}
		for _, m := range mappings {
			record.APIGroup, record.APIVersion, record.Resource, record.Name, record.Namespace = m.Resource.Group,
				m.Resource.Version, m.Resource.Resource, r.Name, ""
			if m.Scope.Name() == meta.RESTScopeNameNamespace {
				record.Namespace = a.GetNamespace()
			}
			if decision, reason, err := o.authz.Authorize(ctx, record); decision != authorizer.DecisionAllow {
				return admission.NewForbidden(a,
					fmt.Errorf(
						"cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %v", reason, err))
			}
		}
	}
	return nil
}

func (o *Owners) mappings(r metav1.OwnerReference) ([]*meta.RESTMapping, error) {
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	if err != nil {
		return nil, err
	}
	return o.mapper.RESTMappings(schema.GroupKind{Group: gv.Group, Kind: r.Kind}, gv.Version)
}
