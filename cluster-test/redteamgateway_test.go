package clustertest

import (
	"context"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// agentAsGateway: an agent's certificate gets a token of the gateway's account, for an hour at most
// and for its own Node. By it the agent reads the Secret that an Ingress names, and no other one.
func agentAsGateway(s *Space) {
	const system, account = "kube-system", "barque-gateway"
	s.Apply(`
apiVersion: v1
kind: Secret
metadata: {name: served}
type: kubernetes.io/tls
stringData: {tls.crt: "", tls.key: ""}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: served}
spec:
  ingressClassName: barque
  tls: [{hosts: [served.example.com], secretName: served}]
  rules:
  - host: served.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: nosuch, port: {number: 80}}}}]}
`)
	dir := filepath.Join(s.DataDir("a1"), "pki")
	config := s.admin()
	config.CertData, config.KeyData = read(s, filepath.Join(dir, "node-client.crt")),
		read(s, filepath.Join(dir, "node.key"))
	agent, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	ctx := s.Context()
	node, err := agent.CoreV1().Nodes().Get(ctx, "a1", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	request := func(seconds int64, to string) (*authenticationv1.TokenRequest, error) {
		of, err := s.Client.CoreV1().Nodes().Get(ctx, to, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return agent.CoreV1().ServiceAccounts(system).CreateToken(ctx, account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: ptr.To(seconds),
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: of.Name,
					UID: of.UID}}}, metav1.CreateOptions{})
	}
	for what, forbidden := range map[string]struct {
		seconds int64
		node    string
	}{"for a day": {86400, node.Name}, "of a server": {3600, "s1"}} {
		if _, err := request(forbidden.seconds, forbidden.node); !apierrors.IsForbidden(err) {
			s.Errorf("a token %s: %v", what, err)
		}
	}
	token, err := request(3600, node.Name)
	if err != nil {
		s.Fatal(err)
	}
	bearer := s.admin()
	bearer.BearerToken = token.Status.Token
	thief, err := kubernetes.NewForConfig(bearer)
	if err != nil {
		s.Fatal(err)
	}
	secrets := thief.CoreV1().Secrets(s.Namespace)
	Eventually(s, deadline, "the Secret that an Ingress names", func(ctx context.Context) error {
		_, err := secrets.Get(ctx, "served", metav1.GetOptions{})
		return err
	})
	_, unnamed := secrets.Get(ctx, "crown", metav1.GetOptions{})
	_, all := secrets.List(ctx, metav1.ListOptions{})
	_, everywhere := thief.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	_, pods := thief.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	for what, err := range map[string]error{
		"a Secret that nothing names": unnamed, "all Secrets of the namespace": all, "all Secrets": everywhere, "pods": pods,
		"a write": secrets.Delete(ctx, "served", metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			s.Errorf("by the gateway's token, %s: %v", what, err)
		}
	}
}
