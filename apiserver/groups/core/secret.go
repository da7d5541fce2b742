package core

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func secrets() resource.Resource {
	return &resource.Kind[corev1.Secret]{
		GroupVersion: version,
		Name:         "secrets",
		Singular:     "secret",
		List:         &corev1.SecretList{},
		Default:      defaultSecret,
		Prepare: func(_ context.Context, s, old *corev1.Secret) {
			if old != nil && s.Type == "" {
				s.Type = old.Type
			}
		},
		Validate: validateSecret,
		Warnings: secretWarnings,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Type", "string", "What the secret is for, which decides the keys that it must have."),
			resource.Column("Data", "integer", "How many keys the secret holds."),
			resource.Age(),
		},
		Row: func(s *corev1.Secret, now time.Time) []any {
			return []any{s.Name, string(s.Type), int64(len(s.Data)), resource.Since(s.CreationTimestamp, now)}
		},
		Fields: func(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} },
	}
}

func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	// stringData is a way to write, never read back.
	for key, value := range s.StringData {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

// secretWarnings warns of an invalid certificate, or one that does not match its key.
func secretWarnings(_ context.Context, s, _ *corev1.Secret) []string {
	if s.Type != corev1.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}

func validateSecret(_ context.Context, s, old *corev1.Secret) field.ErrorList {
	errs := validation.Meta(s, old, true, validation.SubdomainName)
	if old != nil {
		errs = append(errs, validation.Immutable(s.Type, old.Type, field.NewPath("type"))...)
		errs = append(errs, validateFrozen(old.Immutable, s.Immutable,
			frozen{"data", apiequality.Semantic.DeepEqual(s.Data, old.Data)})...)
	}
	data, size := field.NewPath("data"), 0
	for _, key := range validation.SortedKeys(s.Data) {
		errs = append(errs, validation.Check(key, data.Key(key), utilvalidation.IsConfigMapKey)...)
		size += len(s.Data[key])
	}
	if size > largestData {
		errs = append(errs, field.TooLong(data, "", largestData))
	}
	return append(errs, validateSecretType(s, data)...)
}

// validateSecretType demands the keys that the type of a secret promises.
func validateSecretType(s *corev1.Secret, data *field.Path) field.ErrorList {
	var errs field.ErrorList
	need := func(keys ...string) {
		for _, key := range keys {
			if _, ok := s.Data[key]; !ok {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs,
				field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			need(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	case corev1.SecretTypeDockercfg:
		need(corev1.DockerConfigKey)
		errs = append(errs, validateJSON(s.Data, corev1.DockerConfigKey, data)...)
	case corev1.SecretTypeDockerConfigJson:
		need(corev1.DockerConfigJsonKey)
		errs = append(errs, validateJSON(s.Data, corev1.DockerConfigJsonKey, data)...)
	}
	return errs
}

func validateJSON(values map[string][]byte, key string, data *field.Path) field.ErrorList {
	value, ok := values[key]
	if !ok {
		return nil
	}
	var parsed map[string]any
	if err := json.Unmarshal(value, &parsed); err != nil {
		// The parser quotes one character at most.
		return field.ErrorList{field.Invalid(data.Key(key), "<secret contents redacted>", err.Error())}
	}
	return nil
}
