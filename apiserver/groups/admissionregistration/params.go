package admissionregistration

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/resource"
)

// Params gives access to the parameters of policies.
type Params struct {
	Authorizer authorizer.UnconditionalAuthorizer
	// Resource is the resource of a kind.
	Resource func(schema.GroupVersionKind) (schema.GroupVersionResource, error)
	// Validating and Mutating return the kind of a policy's parameters; nil when it has none.
	Validating, Mutating func(ctx context.Context, policy string) (*admissionv1.ParamKind, error)
}

// AuthorizeParams makes the declarations refuse parameters that the writer may not read. The server
// reads them for every user, and the results of a policy can reveal them.
func AuthorizeParams(resources []resource.Resource, p *Params) {
	if k := resource.Find[admissionv1.ValidatingAdmissionPolicy](resources); k != nil {
		k.Validate = authorized(k.Validate, "paramKind",
			func(ctx context.Context, obj, old *admissionv1.ValidatingAdmissionPolicy) error {
				return p.kind(ctx, obj.Spec.ParamKind,
					spec(old, func() *admissionv1.ParamKind { return old.Spec.ParamKind }))
			})
	}
	if k := resource.Find[admissionv1.MutatingAdmissionPolicy](resources); k != nil {
		k.Validate = authorized(k.Validate, "paramKind",
			func(ctx context.Context, obj, old *admissionv1.MutatingAdmissionPolicy) error {
				return p.kind(ctx, obj.Spec.ParamKind,
					spec(old, func() *admissionv1.ParamKind { return old.Spec.ParamKind }))
			})
	}
	if k := resource.Find[admissionv1.ValidatingAdmissionPolicyBinding](resources); k != nil {
		k.Validate = authorized(k.Validate, "paramRef",
			func(ctx context.Context, obj, old *admissionv1.ValidatingAdmissionPolicyBinding) error {
				if old != nil && obj.Spec.PolicyName == old.Spec.PolicyName &&
					apiequality.Semantic.DeepEqual(obj.Spec.ParamRef, old.Spec.ParamRef) {
					return nil
				}
				return p.ref(ctx, obj.Spec.ParamRef, obj.Spec.PolicyName, p.Validating)
			})
	}
	if k := resource.Find[admissionv1.MutatingAdmissionPolicyBinding](resources); k != nil {
		k.Validate = authorized(k.Validate, "paramRef",
			func(ctx context.Context, obj, old *admissionv1.MutatingAdmissionPolicyBinding) error {
				if old != nil && obj.Spec.PolicyName == old.Spec.PolicyName &&
					apiequality.Semantic.DeepEqual(obj.Spec.ParamRef, old.Spec.ParamRef) {
					return nil
				}
				return p.ref(ctx, obj.Spec.ParamRef, obj.Spec.PolicyName, p.Mutating)
			})
	}
}

// spec reads a field of an object that may be nil.
func spec[T, F any](obj *T, read func() *F) *F {
	if obj == nil {
		return nil
	}
	return read()
}

// authorized adds a permission check to validate, for an object that is valid otherwise.
func authorized[T any](
	validate func(ctx context.Context, obj, old *T) field.ErrorList, at string,
	ask func(ctx context.Context, obj, old *T) error,
) func(ctx context.Context, obj, old *T) field.ErrorList {
	return func(ctx context.Context, obj, old *T) field.ErrorList {
		errs := validate(ctx, obj, old)
		if len(errs) > 0 {
			return errs
		}
		if err := ask(ctx, obj, old); err != nil {
			return field.ErrorList{field.Forbidden(field.NewPath("spec", at), err.Error())}
		}
		return nil
	}
}

// writer is the user of a request; nil for one that may do everything.
func writer(ctx context.Context) (user.Info, error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, errors.New("cannot identify user to authorize read access to parameters")
	}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return nil, nil
	}
	return u, nil
}

// kind checks that the writer of a policy may read all objects of the kind of its parameters.
func (p *Params) kind(ctx context.Context, kind, old *admissionv1.ParamKind) error {
	if kind == nil || old != nil && *kind == *old {
		return nil
	}
	u, err := writer(ctx)
	if u == nil {
		return err
	}
	of, _ := p.resolve(kind)
	d, _, err := p.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: "get", ResourceRequest: true, Name: "*", Namespace: "*", APIGroup: of.Group,
		APIVersion: of.Version, Resource: of.Resource,
	})
	if err != nil {
		return err
	}
	if d != authorizer.DecisionAllow {
		return fmt.Errorf(
			`user %v must have "get" permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)`, u,
			kind.Kind, kind.APIVersion)
	}
	return nil
}

// resolve names the resource of a kind as narrowly as it is known: an unknown part is "*".
func (p *Params) resolve(kind *admissionv1.ParamKind) (schema.GroupVersionResource, error) {
	of := schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return of, fmt.Errorf("unable to parse paramKind %v", kind)
	}
	of.Group, of.Version = gv.Group, gv.Version
	known, err := p.Resource(gv.WithKind(kind.Kind))
	if err != nil {
		return of, fmt.Errorf("unable to resolve paramKind %v", kind)
	}
	of.Resource = known.Resource
	return of, nil
}

// ref checks that the writer of a binding may read the parameters that it names.
func (p *Params) ref(
	ctx context.Context, ref *admissionv1.ParamRef, policy string,
	kindOf func(context.Context, string) (*admissionv1.ParamKind, error),
) error {
	if ref == nil {
		return nil
	}
	u, err := writer(ctx)
	if u == nil {
		return err
	}
	of := schema.GroupVersionResource{Group: "*", Version: "*", Resource: "*"}
	kind, why := kindOf(ctx, policy)
	if why != nil {
		why = fmt.Errorf("unable to get policy %s", policy)
	} else if kind != nil {
		of, why = p.resolve(kind)
	}
	verb := "get"
	if ref.Name == "" {
		verb = "list"
	}
	d, _, err := p.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: verb, ResourceRequest: true, Name: ref.Name, Namespace: ref.Namespace, APIGroup: of.Group,
		APIVersion: of.Version, Resource: of.Resource,
	})
	switch {
	case err != nil:
		return fmt.Errorf("failed to authorize request: %w", err)
	case d == authorizer.DecisionAllow:
		return nil
	case why != nil:
		return fmt.Errorf(
			`%w to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, why, u, verb)
	}
	return fmt.Errorf(`user %v does not have "%v" permission on the object referenced by paramRef`, u, verb)
}
