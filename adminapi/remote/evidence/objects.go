package evidence

import (
	"context"
	"errors"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/clusterstatus/cis"
)

func readObjects(ctx context.Context, client kubernetes.Interface) (*cis.Objects, error) {
	o := new(cis.Objects)
	all, core, rbac := metav1.ListOptions{}, client.CoreV1(), client.RbacV1()
	var errs []error
	fail := func(err error) { errs = append(errs, err) }
	if list, err := core.Namespaces().List(ctx, all); err != nil {
		fail(err)
	} else {
		o.Namespaces = list.Items
	}
	if list, err := core.Pods("").List(ctx, all); err != nil {
		fail(err)
	} else {
		o.Pods = list.Items
	}
	if list, err := core.Services("").List(ctx, all); err != nil {
		fail(err)
	} else {
		o.Services = list.Items
	}
	if list, err := core.ServiceAccounts("").List(ctx, all); err != nil {
		fail(err)
	} else {
		o.ServiceAccounts = list.Items
	}
	if list, err := rbac.Roles("").List(ctx, all); err != nil {
		fail(err)
	} else {
		o.Roles = list.Items
	}
	if list, err := rbac.ClusterRoles().List(ctx, all); err != nil {
		fail(err)
	} else {
		o.ClusterRoles = list.Items
	}
	if list, err := rbac.RoleBindings("").List(ctx, all); err != nil {
		fail(err)
	} else {
		o.RoleBindings = list.Items
	}
	if list, err := rbac.ClusterRoleBindings().List(ctx, all); err != nil {
		fail(err)
	} else {
		o.ClusterRoleBindings = list.Items
	}
	if list, err := client.NetworkingV1().NetworkPolicies("").List(ctx, all); err != nil {
		fail(err)
	} else {
		o.NetworkPolicies = list.Items
	}
	if list, err := core.Secrets("").List(ctx,
		metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)}); err != nil {
		fail(err)
	} else {
		for i := range list.Items {
			o.BootstrapTokens = append(o.BootstrapTokens, list.Items[i].Namespace+"/"+list.Items[i].Name)
		}
	}
	switch ca, err := core.ConfigMaps(metav1.NamespaceDefault).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); {
	case err == nil:
		o.RootCA = ca.Data["ca.crt"]
	case !apierrors.IsNotFound(err):
		fail(err)
	}
	if me, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{}); err != nil {
		fail(err)
	} else {
		o.Mine = me.Status.UserInfo.Groups
	}
	errs = append(errs, readPolicies(ctx, client, o))
	return o, errors.Join(errs...)
}

// readPolicies lists the webhooks and policies that see the creation of pods.
func readPolicies(ctx context.Context, client kubernetes.Interface, o *cis.Objects) error {
	registered := client.AdmissionregistrationV1()
	hooks, err := registered.ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range hooks.Items {
		for _, hook := range hooks.Items[i].Webhooks {
			if slices.ContainsFunc(hook.Rules, seesPods) {
				o.ImagePolicies = append(o.ImagePolicies, "webhook "+hook.Name)
			}
		}
	}
	policies, err := registered.ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range policies.Items {
		p := &policies.Items[i]
		if m := p.Spec.MatchConstraints; m != nil &&
			slices.ContainsFunc(m.ResourceRules,
				func(r admissionv1.NamedRuleWithOperations) bool { return seesPods(r.RuleWithOperations) }) {
			o.ImagePolicies = append(o.ImagePolicies, "policy "+p.Name)
		}
	}
	return nil
}

func seesPods(r admissionv1.RuleWithOperations) bool {
	has := func(list []string, value string) bool {
		return slices.Contains(list, value) || slices.Contains(list, "*")
	}
	creates := slices.Contains(r.Operations, admissionv1.Create) ||
		slices.Contains(r.Operations, admissionv1.OperationAll)
	return creates && has(r.APIGroups, "") && (has(r.Resources, "pods") || slices.Contains(r.Resources, "*/*"))
}
