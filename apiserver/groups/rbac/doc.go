// Package rbac declares the resources of the rbac.authorization.k8s.io API group. It defines a
// well-formed role or binding. The authorizer and the escalation checks of the server decide the
// permissions that they give, and the users that may write them.
package rbac

import (
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/resource"
)

var version = rbacv1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{roles(), roleBindings(), clusterRoles(), clusterRoleBindings()}
}

func roleColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		resource.Name(),
		resource.Column("Created At", "date", "When the role was created."),
	}
}

func roleCells(m *metav1.ObjectMeta) []any {
	return []any{m.Name, m.CreationTimestamp.UTC().Format(time.RFC3339)}
}

func bindingColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		resource.Name(),
		resource.Column("Role", "string", "The role that is granted."),
		resource.Age(),
		resource.WideColumn("Users", "string", "Users who get the role."),
		resource.WideColumn("Groups", "string", "Groups whose members get the role."),
		resource.WideColumn("ServiceAccounts", "string", "Service accounts that get the role."),
	}
}

func bindingCells(m *metav1.ObjectMeta, ref rbacv1.RoleRef, subjects []rbacv1.Subject, now time.Time) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []any{
		m.Name,
		ref.Kind + "/" + ref.Name,
		resource.Since(m.CreationTimestamp, now),
		strings.Join(users, ", "),
		strings.Join(groups, ", "),
		strings.Join(accounts, ", "),
	}
}
