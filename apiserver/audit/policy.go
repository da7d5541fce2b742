package audit

import (
	_ "embed"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/apis/audit/validation"
	"k8s.io/apiserver/pkg/audit"
)

// DefaultPolicy is the policy without a policy file: who changed what, and who read Secrets.
//
//go:embed policy.yaml
var DefaultPolicy string

// strict decodes policies. An unknown field is an error: with a misspelled field a rule would match
// more requests than its author wants.
var strict = serializer.NewCodecFactory(audit.Scheme, serializer.EnableStrict).UniversalDecoder()

// readPolicy reads the policy in a file, or the default one for "".
func readPolicy(path string) (*auditinternal.Policy, error) {
	if path == "" {
		return parsePolicy([]byte(DefaultPolicy))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the audit policy: %w", err)
	}
	policy, err := parsePolicy(data)
	if err != nil {
		return nil, fmt.Errorf("audit policy %s: %w", path, err)
	}
	return policy, nil
}

// parsePolicy returns an error that names the field.
func parsePolicy(data []byte) (*auditinternal.Policy, error) {
	policy := new(auditinternal.Policy)
	_, kind, err := strict.Decode(data, nil, policy)
	if err != nil {
		return nil, err
	}
	if want := (schema.GroupVersionKind{Group: auditv1.GroupName, Version: auditv1.SchemeGroupVersion.Version, Kind: "Policy"}); *kind != want {
		return nil, fmt.Errorf("apiVersion and kind are %s, %s: want %s, %s",
			kind.GroupVersion(), kind.Kind, want.GroupVersion(), want.Kind)
	}
	if wrong := validation.ValidatePolicy(policy); len(wrong) > 0 {
		return nil, wrong.ToAggregate()
	}
	if len(policy.Rules) == 0 {
		return nil, errors.New("rules: there is none: want one at least, such as {level: Metadata}")
	}
	return policy, nil
}
