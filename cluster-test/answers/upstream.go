package main

import (
	"context"
	"crypto/tls"
	"net/http"

	"github.com/barque/barque/cluster-test/kubeapiserver"
)

// token is the bearer token of a member of system:masters on Barque's server.
const token = "answers"

// startUpstream starts etcd and a kube-apiserver over it.
func startUpstream(ctx context.Context, bin, work string) (*server, error) {
	c, err := kubeapiserver.Start(ctx, kubeapiserver.Options{Bin: bin, Work: work, NoSync: true})
	if err != nil {
		return nil, err
	}
	s := c.Servers[0]
	client := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: s.Roots, Certificates: []tls.Certificate{c.Client}}}}
	return &server{name: "kube-apiserver", url: s.URL, client: client, stop: c.Stop}, nil
}
