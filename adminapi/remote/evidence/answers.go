package evidence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus/cis"
)

// askAnswers asks the API of one server at its own address: another address may lead to any server.
func askAnswers(ctx context.Context, config *rest.Config, s Server, nodes []corev1.Node, namespaces []string) (
	*cis.Answers, error) {
	if s.Address == "" {
		return nil, errors.New("no address of its API is known")
	}
	config = rest.CopyConfig(config)
	config.Host = "https://" + s.Address
	client, err := kubernetes.NewForConfig(remote.Reaching(config, remote.Timeout))
	if err != nil {
		return nil, err
	}
	a := &cis.Answers{May: map[string]cis.Answer{}, Probes: map[string]map[string]cis.Probe{}}
	if err := review(ctx, client, nodes, a); err != nil {
		a.Problem = fmt.Sprintf("%s: %v", s.Address, err)
		return a, nil // what is missing is not known
	}
	if err := dryRun(ctx, client, namespaces, a); err != nil {
		a.Problem = fmt.Sprintf("%s: %v", s.Address, err)
	}
	return a, nil
}

// review asks for the rights of users. It ends with the first question that is not answered: a
// server that does not answer would be waited for with each one.
func review(ctx context.Context, client kubernetes.Interface, nodes []corev1.Node, a *cis.Answers) error {
	ask := func(key, user string, groups []string, r authorizationv1.ResourceAttributes) error {
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: &r}},
			metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("a review: %w", err)
		}
		a.May[key] = cis.Answer{Allowed: answer.Status.Allowed, Reason: answer.Status.Reason,
			Problem: answer.Status.EvaluationError}
		return nil
	}
	if err := ask(cis.Stranger, cis.Stranger, nil,
		authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: metav1.NamespaceSystem,
			Name: "x"}); err != nil {
		return err
	}
	if err := ask(cis.RBACUser, cis.RBACUser, []string{"system:authenticated"},
		authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}); err != nil {
		return err
	}
	if len(nodes) > 0 {
		name := nodes[0].Name
		if err := ask(cis.ANode, "system:node:"+name, []string{"system:nodes"},
			authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Name: name}); err != nil {
			return err
		}
	}
	for _, broad := range cis.BroadGroups {
		for _, requests := range [][]string{cis.ReadSecrets, cis.CreatePods} {
			for _, request := range requests {
				for _, namespace := range cis.ReviewNamespaces {
					verb, resource, _ := strings.Cut(request, " ")
					r := authorizationv1.ResourceAttributes{Verb: verb, Resource: resource, Namespace: namespace}
					if err := ask(broad.Request(request, namespace), broad.User, broad.Groups, r); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// dryRun creates the pods of cis in each namespace of users, without any effect.
func dryRun(ctx context.Context, client kubernetes.Interface, namespaces []string, a *cis.Answers) error {
	var mu sync.Mutex
	var errs []error
	var asking sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for _, namespace := range namespaces { // all before the first answer, which reads the map
		a.Probes[namespace] = map[string]cis.Probe{}
	}
	for _, namespace := range namespaces {
		for name, pod := range probes() {
			asking.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				_, err := client.CoreV1().Pods(namespace).Create(ctx, pod,
					metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					a.Probes[namespace][name] = cis.Probe{Admitted: true}
				case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
					a.Probes[namespace][name] = cis.Probe{Refused: err.Error()}
				default:
					errs = append(errs, fmt.Errorf("a dry run: %w", err))
				}
			})
		}
	}
	asking.Wait()
	return errors.Join(errs...)
}
