package evidence

import (
	"context"
	"errors"
	"slices"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/clusterstatus/cis"
)

func readObjects(ctx context.Context, client kubernetes.Interface, nodes []corev1.Node) (*cis.Objects, error) {
	o := &cis.Objects{May: map[string]cis.Answer{}}
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
	if list, err := core.Secrets("").List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)}); err != nil {
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
	errs = append(errs, review(ctx, client, nodes, o), readPolicies(ctx, client, o), dryRun(ctx, client, o))
	return o, errors.Join(errs...)
}

// review asks who may do what.
func review(ctx context.Context, client kubernetes.Interface, nodes []corev1.Node, o *cis.Objects) error {
	ask := func(key, user string, groups []string, r authorizationv1.ResourceAttributes) error {
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: &r}}, metav1.CreateOptions{})
		if err == nil {
			o.May[key] = cis.Answer{Allowed: answer.Status.Allowed, Reason: answer.Status.Reason}
		}
		return err
	}
	authenticated := []string{"system:authenticated"}
	errs := []error{
		ask(cis.Stranger, cis.Stranger, nil, authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: "kube-system", Name: "x"}),
		ask(cis.RBACUser, cis.RBACUser, authenticated, authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}),
		ask(cis.Authenticated+" list secrets", cis.Authenticated, authenticated, authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"}),
		ask(cis.Authenticated+" create pods", cis.Authenticated, authenticated, authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods"}),
	}
	if len(nodes) > 0 {
		errs = append(errs, ask("system:nodes", "system:node:"+nodes[0].Name, []string{"system:nodes"}, authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Name: nodes[0].Name}))
	}
	me, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err == nil {
		o.Mine = me.Status.UserInfo.Groups
	}
	return errors.Join(append(errs, err)...)
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
		if m := p.Spec.MatchConstraints; m != nil && slices.ContainsFunc(m.ResourceRules, func(r admissionv1.NamedRuleWithOperations) bool { return seesPods(r.RuleWithOperations) }) {
			o.ImagePolicies = append(o.ImagePolicies, "policy "+p.Name)
		}
	}
	return nil
}

func seesPods(r admissionv1.RuleWithOperations) bool {
	has := func(list []string, value string) bool {
		return slices.Contains(list, value) || slices.Contains(list, "*")
	}
	creates := slices.Contains(r.Operations, admissionv1.Create) || slices.Contains(r.Operations, admissionv1.OperationAll)
	return creates && has(r.APIGroups, "") && (has(r.Resources, "pods") || slices.Contains(r.Resources, "*/*"))
}

// dryRun creates the pods of cis in each namespace of users, without any effect.
func dryRun(ctx context.Context, client kubernetes.Interface, o *cis.Objects) error {
	o.Probes = map[string]map[string]cis.Probe{}
	var mu sync.Mutex
	var errs []error
	var asking sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for _, namespace := range cis.OfUsers(o.Namespaces) {
		o.Probes[namespace] = map[string]cis.Probe{}
		for name, pod := range probes() {
			asking.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				_, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					o.Probes[namespace][name] = cis.Probe{Admitted: true}
				case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
					o.Probes[namespace][name] = cis.Probe{Refused: err.Error()}
				case !apierrors.IsNotFound(err): // a namespace that has just gone
					errs = append(errs, err)
				}
			})
		}
	}
	asking.Wait()
	return errors.Join(errs...)
}
