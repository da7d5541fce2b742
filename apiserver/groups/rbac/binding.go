package rbac

import (
	"context"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func roleBindings() resource.Resource {
	return &resource.Kind[rbacv1.RoleBinding]{
		GroupVersion: version,
		Name:         "rolebindings",
		Singular:     "rolebinding",
		List:         &rbacv1.RoleBindingList{},
		Default:      func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		Validate: func(_ context.Context, b, old *rbacv1.RoleBinding) field.ErrorList {
			errs := validation.Meta(b, old, true, validation.SegmentName)
			errs = append(errs, validateRoleRef(b.RoleRef, "Role", "ClusterRole")...)
			errs = append(errs, validateSubjects(b.Subjects, true)...)
			if old != nil {
				errs = append(errs, validateSameRole(b.RoleRef, old.RoleRef)...)
			}
			return errs
		},
		Columns: bindingColumns(),
		Row: func(b *rbacv1.RoleBinding, now time.Time) []any {
			return bindingCells(&b.ObjectMeta, b.RoleRef, b.Subjects, now)
		},
	}
}

func clusterRoleBindings() resource.Resource {
	return &resource.Kind[rbacv1.ClusterRoleBinding]{
		GroupVersion:  version,
		Name:          "clusterrolebindings",
		Singular:      "clusterrolebinding",
		ClusterScoped: true,
		List:          &rbacv1.ClusterRoleBindingList{},
		Default:       func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		Validate: func(_ context.Context, b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
			errs := validation.Meta(b, old, false, validation.SegmentName)
			errs = append(errs, validateRoleRef(b.RoleRef, "ClusterRole")...)
			errs = append(errs, validateSubjects(b.Subjects, false)...)
			if old != nil {
				errs = append(errs, validateSameRole(b.RoleRef, old.RoleRef)...)
			}
			return errs
		},
		Columns: bindingColumns(),
		Row: func(b *rbacv1.ClusterRoleBinding, now time.Time) []any {
			return bindingCells(&b.ObjectMeta, b.RoleRef, b.Subjects, now)
		},
	}
}

func defaultBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if ref.APIGroup == "" {
		ref.APIGroup = rbacv1.GroupName
	}
	for i := range subjects {
		s := &subjects[i]
		if s.APIGroup == "" && (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) {
			s.APIGroup = rbacv1.GroupName
		}
	}
}

func validateRoleRef(ref rbacv1.RoleRef, kinds ...string) field.ErrorList {
	at := field.NewPath("roleRef")
	var errs field.ErrorList
	if ref.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), ref.APIGroup, []string{rbacv1.GroupName}))
	}
	errs = append(errs, validation.OneOf(ref.Kind, at.Child("kind"), kinds...)...)
	return append(errs, validation.Name(ref.Name, at.Child("name"), content.IsPathSegmentName)...)
}

// validateSameRole: the permission to write a binding was granted for the role that it grants.
func validateSameRole(ref, old rbacv1.RoleRef) field.ErrorList {
	if ref == old {
		return nil
	}
	return validation.Immutable(ref, old, field.NewPath("roleRef"))
}

// validateSubjects checks the subjects of a role. A service account without a namespace is in that
// of the binding; a ClusterRoleBinding has none.
func validateSubjects(subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i, s := range subjects {
		at := field.NewPath("subjects").Index(i)
		if s.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			if s.Name != "" {
				errs = append(errs, validation.Check(s.Name, at.Child("name"), func(name string) []string {
					return apivalidation.ValidateServiceAccountName(name, false)
				})...)
			}
			if s.APIGroup != "" {
				errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{""}))
			}
			if s.Namespace == "" && !namespaced {
				errs = append(errs, field.Required(at.Child("namespace"), ""))
			}
		case rbacv1.UserKind, rbacv1.GroupKind:
			if s.APIGroup != rbacv1.GroupName {
				errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{rbacv1.GroupName}))
			}
		default:
			errs = append(errs,
				field.NotSupported(at.Child("kind"), s.Kind,
					[]string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
		}
	}
	return errs
}
