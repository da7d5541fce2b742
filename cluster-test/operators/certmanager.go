package main

import (
	"context"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

const certManagerVersion = "v1.11.5"

//go:embed manifests/cert-manager.yaml
var certManagerManifests string

func certManagerImage(program string) workshop.Image {
	return workshop.Linked(
		workshop.Simple("quay.io/jetstack/cert-manager-"+program+":"+certManagerVersion,
			"/app/cmd/"+program+"/"+program, "cmd/"+program, "1000"),
		"-X github.com/cert-manager/cert-manager/pkg/util.AppVersion="+certManagerVersion)
}

var certManager = program{
	name: "cert-manager", module: "github.com/cert-manager/cert-manager", version: certManagerVersion,
	scenario: "an authority of its own signs a certificate for an annotated Ingress; the Secret's certificate is valid for the host",
	images: []workshop.Image{
		certManagerImage("controller"), certManagerImage("webhook"), certManagerImage("cainjector"),
		certManagerImage("ctl"), certManagerImage("acmesolver"),
	},
	npm:        clients,
	namespaces: []string{"cert-manager"},
	install: func(ctx context.Context, s *site) error {
		chart, err := certManagerChart(s)
		if err != nil {
			return err
		}
		if err := s.chart(ctx, chart, "cert-manager", "cert-manager", "--set", "installCRDs=true"); err != nil {
			return err
		}
		return s.apply(ctx, certManagerManifests)
	},
	fact: func(ctx context.Context, s *site, r round) error {
		host := string(r) + ".example.org"
		if err := s.apply(ctx, fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %[1]s, namespace: certified, annotations: {cert-manager.io/issuer: authority}}
spec:
  tls: [{hosts: [%[2]s], secretName: %[1]s-tls}]
  rules:
  - host: %[2]s
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`, r, host)); err != nil {
			return err
		}
		return s.until(ctx, "a valid certificate for "+host, func(ctx context.Context) error {
			secret, err := s.Client.CoreV1().Secrets("certified").Get(ctx, string(r)+"-tls", metav1.GetOptions{})
			if err != nil {
				return err
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(secret.Data["ca.crt"])
			block, _ := pem.Decode(secret.Data["tls.crt"])
			if block == nil {
				return errors.New("the Secret has no certificate")
			}
			certificate, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return err
			}
			_, err = certificate.Verify(x509.VerifyOptions{DNSName: host, Roots: roots})
			return err
		})
	},
}

// certManagerChart completes the chart as the authors' release does: the version, and the CRDs as
// one template.
func certManagerChart(s *site) (string, error) {
	chart, err := s.copied("deploy/charts/cert-manager")
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(chart, "Chart.template.yaml"))
	if err != nil {
		return "", err
	}
	described := strings.NewReplacer("ersion: v0.1.0", "ersion: "+certManagerVersion, "{{IS_PRERELEASE}}",
		"false").Replace(string(text))
	files, err := filepath.Glob(filepath.Join(s.dir, "deploy/crds/*.yaml"))
	if err != nil {
		return "", err
	}
	var crds []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		crds = append(crds, string(text))
	}
	template := "{{- if .Values.installCRDs }}\n" + strings.Join(crds, "---\n") + "{{- end }}\n"
	return chart, errors.Join(
		os.Remove(filepath.Join(chart, "Chart.template.yaml")),
		os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte(described), 0o644),
		os.WriteFile(filepath.Join(chart, "templates/crds.yaml"), []byte(template), 0o644))
}
