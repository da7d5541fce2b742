package audit

import (
	_ "embed"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/apis/audit/validation"
	"k8s.io/apiserver/pkg/audit"

	"github.com/barque/barque/apiserver/configfile"
)

// DefaultPolicy is the policy without a policy file: all changes with their users, and reads
// of Secrets.
//
//go:embed policy.yaml
var DefaultPolicy string

// strict decodes policies. An unknown field is an error: with a misspelled field a rule would match
// more requests than its author wants.
var strict = serializer.NewCodecFactory(audit.Scheme, serializer.EnableStrict).UniversalDecoder()

// policyKind is the kind of a policy's file.
var policyKind = configfile.Kind{Name: "Policy", APIVersions: []string{auditv1.SchemeGroupVersion.String()}}

// readPolicy reads the policy in a file, or the default one for "". An error begins with the flag.
func readPolicy(path string) (*auditinternal.Policy, error) {
	if path == "" {
		return parsePolicy([]byte(DefaultPolicy))
	}
	data, err := configfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("%s %w", policyFlag, err)
	}
	policy, err := parsePolicy(data)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", policyFlag, path, err)
	}
	return policy, nil
}

// parsePolicy returns an error that names the field.
func parsePolicy(data []byte) (*auditinternal.Policy, error) {
	if err := policyKind.Check(data); err != nil {
		return nil, err
	}
	policy := new(auditinternal.Policy)
	if _, _, err := strict.Decode(data, nil, policy); err != nil {
		return nil, configfile.Plain(err)
	}
	if wrong := validation.ValidatePolicy(policy); len(wrong) > 0 {
		return nil, wrong.ToAggregate()
	}
	if len(policy.Rules) == 0 {
		return nil, errors.New("rules: there is none: want one at least, such as {level: Metadata}")
	}
	return policy, nil
}
