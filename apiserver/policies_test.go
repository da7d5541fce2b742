package apiserver

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// configMapWrites matches the requests of these tests.
func configMapWrites() *admissionv1.MatchResources {
	return &admissionv1.MatchResources{
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
				Resources: []string{"configmaps"}},
		}}}}
}

// tryMaps makes config maps, none of which stays, until check is content.
func tryMaps(
	t *testing.T, c *cluster, what string, data map[string]string, check func(*corev1.ConfigMap, error) error,
) {
	t.Helper()
	eventually(t, what, func(ctx context.Context) error {
		made, err := c.admin.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "try"}, Data: data,
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return check(made, err)
	})
}

func TestValidatingPolicy(t *testing.T) {
	c := startCluster(t)
	withDefaultNamespace(t, c)
	policies := c.admin.AdmissionregistrationV1()
	must(c.admin.CoreV1().ConfigMaps("quiet").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"most": "2"},
	}, metav1.CreateOptions{}))(t)
	must(policies.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "few-keys"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			ParamKind:        &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			MatchConstraints: configMapWrites(),
			MatchConditions: []admissionv1.MatchCondition{
				{Name: "not-quiet", Expression: `request.namespace != "quiet"`}},
			Variables: []admissionv1.Variable{
				{Name: "keys", Expression: "has(object.data) ? object.data.size() : 0"}},
			Validations: []admissionv1.Validation{{
				Expression:        "variables.keys <= int(params.data.most)",
				MessageExpression: `"at most " + params.data.most + " keys, not " + string(variables.keys)`,
			}},
		},
	}, metav1.CreateOptions{}))(t)
	must(policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "few-keys"},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "few-keys",
			ParamRef: &admissionv1.ParamRef{Name: "limits", Namespace: "quiet",
				ParameterNotFoundAction: ptr.To(admissionv1.DenyAction)},
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{}))(t)
	three := map[string]string{"a": "", "b": "", "c": ""}
	refusedWith := func(text string) func(*corev1.ConfigMap, error) error {
		return func(_ *corev1.ConfigMap, err error) error {
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), text) {
				return fmt.Errorf("%w, want a refusal with %q", err, text)
			}
			return nil
		}
	}
	tryMaps(t, c, "the policy refuses three keys", three,
		refusedWith(
			"ValidatingAdmissionPolicy 'few-keys' with binding 'few-keys' denied request: at most 2 keys, not 3"))
	tryMaps(t, c, "two keys are allowed", map[string]string{"a": "", "b": ""},
		func(_ *corev1.ConfigMap, err error) error { return err })
	must(
		c.admin.CoreV1().ConfigMaps("quiet").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "three"}, Data: three}, metav1.CreateOptions{}))(t)
	if err := c.ensure(t.Context(), kubernetes.NewForConfigOrDie(c.LoopbackConfig())); err != nil {
		t.Error(err)
	}
	// A parameter that changes counts for the next request.
	must(c.admin.CoreV1().ConfigMaps("quiet").Update(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"most": "1"},
	}, metav1.UpdateOptions{}))(t)
	tryMaps(t, c, "the new limit", map[string]string{"a": "", "b": ""}, refusedWith("at most 1 keys, not 2"))
	if err := policies.ValidatingAdmissionPolicyBindings().Delete(t.Context(), "few-keys",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tryMaps(t, c, "without a binding the policy is nothing", three,
		func(_ *corev1.ConfigMap, err error) error { return err })
}

func TestMutatingPolicy(t *testing.T) {
	c := startCluster(t)
	withDefaultNamespace(t, c)
	policies := c.admin.AdmissionregistrationV1()
	must(policies.MutatingAdmissionPolicies().Create(t.Context(), &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "both"},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints:   configMapWrites(),
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			Mutations: []admissionv1.Mutation{
				{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{
					Expression: `[JSONPatch{op: "add", path: "/data/patched", value: "yes"}]`,
				}},
				{PatchType: admissionv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionv1.ApplyConfiguration{
						Expression: `Object{metadata: Object.metadata{labels: {"applied": object.data.patched}}}`,
					}},
			},
		},
	}, metav1.CreateOptions{}))(t)
	must(policies.MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "both"},
		Spec:       admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "both"},
	}, metav1.CreateOptions{}))(t)
	tryMaps(t, c, "the policy changes the object", map[string]string{"own": "kept"},
		func(m *corev1.ConfigMap, err error) error {
			if err != nil {
				return err
			}
			if m.Data["patched"] != "yes" || m.Data["own"] != "kept" || m.Labels["applied"] != "yes" {
				return fmt.Errorf("data %v, labels %v", m.Data, m.Labels)
			}
			return nil
		})
}

// The writer of a binding must be allowed to read the parameters that it names.
func TestParametersAreAuthorized(t *testing.T) {
	c := startCluster(t)
	withDefaultNamespace(t, c)
	must(c.admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "policies"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"}},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"},
				ResourceNames: []string{"mine"}},
		},
	}, metav1.CreateOptions{}))(t)
	must(c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "policies"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "policies"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "ann"}},
	}, metav1.CreateOptions{}))(t)
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			ParamKind: &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}, MatchConstraints: configMapWrites(),
			Validations: []admissionv1.Validation{{Expression: "true"}},
		},
	}
	ann := kubernetes.NewForConfigOrDie(c.ca.client(t, c.host, pkix.Name{CommonName: "ann"})).AdmissionregistrationV1()
	eventually(t, "ann's role is known", func(ctx context.Context) error {
		_, err := ann.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) {
			return err
		}
		if !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(),
				`must have "get" permission on all objects of the referenced paramKind (kind=ConfigMap, apiVersion=v1)`) {
			t.Fatalf("a policy over all config maps: %v", err)
		}
		return nil
	})
	must(
		c.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policy,
			metav1.CreateOptions{}))(t)
	bind := func(params string) error {
		_, err := ann.ValidatingAdmissionPolicyBindings().Create(t.Context(),
			&admissionv1.ValidatingAdmissionPolicyBinding{
				ObjectMeta: metav1.ObjectMeta{Name: params},
				Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
					PolicyName: "p", ValidationActions: []admissionv1.ValidationAction{admissionv1.Warn},
					ParamRef: &admissionv1.ParamRef{Name: params, Namespace: "quiet",
						ParameterNotFoundAction: ptr.To(admissionv1.AllowAction)},
				},
			}, metav1.CreateOptions{})
		return err
	}
	if err := bind("theirs"); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), `does not have "get" permission on the object referenced by paramRef`) {
		t.Errorf("a binding to another's parameters: %v", err)
	}
	if err := bind("mine"); err != nil {
		t.Errorf("a binding to one's own parameters: %v", err)
	}
}
