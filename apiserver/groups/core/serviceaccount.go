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
		GroupVersion:  version,
		Name:          "serviceaccounts",
		Singular:      "serviceaccount",
		ShortNames:    []string{"sa"},
		List:          &corev1.ServiceAccountList{},
		ReturnDeleted: true,
		// Of the secrets only the names count.
		Prepare: func(_ context.Context, sa, _ *corev1.ServiceAccount) {
			for i, secret := range sa.Secrets {
				sa.Secrets[i] = corev1.ObjectReference{Name: secret.Name}
			}
		},
		Validate: func(_ context.Context, sa, old *corev1.ServiceAccount) field.ErrorList {
			return validation.Meta(sa, old, true, validation.SubdomainName)
		},
		Warnings: accountWarnings,
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

// mountableSecrets is an annotation that lets the pods of an account use its own secrets only.
const mountableSecrets = "kubernetes.io/enforce-mountable-secrets"

// accountWarnings warns that the annotation is deprecated when it is set anew.
func accountWarnings(_ context.Context, sa, old *corev1.ServiceAccount) []string {
	_, set := sa.Annotations[mountableSecrets]
	if old != nil {
		if _, was := old.Annotations[mountableSecrets]; was {
			return nil
		}
	}
	if !set {
		return nil
	}
	return []string{
		"metadata.annotations[" + mountableSecrets +
			"]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"}
}
