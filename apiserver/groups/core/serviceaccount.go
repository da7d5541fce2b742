package core

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func serviceAccounts() resource.Resource {
	return &resource.Kind[corev1.ServiceAccount]{
		GroupVersion: version,
		Name:         "serviceaccounts",
		Singular:     "serviceaccount",
		ShortNames:   []string{"sa"},
		List:         &corev1.ServiceAccountList{},
		Validate: func(_ context.Context, sa, old *corev1.ServiceAccount) field.ErrorList {
			return validation.Meta(sa, old, true, validation.SubdomainName)
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Secrets", "integer", "How many secrets the account lists."),
			resource.Age(),
		},
		Row: func(sa *corev1.ServiceAccount, now time.Time) []any {
			return []any{sa.Name, int64(len(sa.Secrets)), resource.Since(sa.CreationTimestamp, now)}
		},
	}
}
