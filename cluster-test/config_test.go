package clustertest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// hello.yaml needs no registry: its image is part of barque.
func TestHelloWithoutRegistry(t *testing.T) {
	s := newSpace(t)
	s.Registry.Off()
	defer s.Registry.On()
	before := s.Registry.Requests()
	s.K("apply", "-f", examples+"hello.yaml")
	s.K("rollout", "status", "deployment/hello", "--timeout=2m")
	if n := s.Registry.Requests() - before; n != 0 {
		t.Errorf("the built-in image made %d requests to the registry", n)
	}
	port := s.K("get", "service", "hello", "-o", "jsonpath={.spec.ports[0].nodePort}")
	seen := map[string]bool{}
	for _, p := range s.Pods("app=hello") {
		Eventually(t, deadline, "an answer of "+p.Name+" through the node port", func(ctx context.Context) error {
			return get(ctx, "http://"+p.Status.HostIP+":"+port+"/", "Hello from "+p.Name)
		})
		seen[p.Spec.NodeName] = true
	}
	if len(seen) != 3 {
		t.Errorf("the pods are on %d nodes, want 3", len(seen))
	}
}

// config.yaml: a ConfigMap and a Secret as environment and as files; a later change reaches files.
func TestConfig(t *testing.T) {
	s := newSpace(t)
	s.K("apply", "-f", examples+"config.yaml")
	s.WaitReady("config")
	Eventually(t, deadline, "what the pod says", func(context.Context) error { // it is ready when its process has begun
		if log := s.K("logs", "config"); !strings.Contains(log,
			"colour is blue, user is admin\nfiles: /etc/app: app.conf colour") {
			return fmt.Errorf("the log is\n%s", log)
		}
		return nil
	})
	sh := func(script string) string { return s.K("exec", "config", "--", "sh", "-c", script) }
	if got := sh(
		`echo "$COLOUR $PASSWORD"; cat /etc/app/app.conf`); got != "blue correct horse battery staple\nlisten = 8080\ngreeting = hello\n" {
		t.Errorf("environment and file are %q", got)
	}
	if got := sh(
		"cat /etc/app-secret/password; stat -L -c ' %a' /etc/app-secret/password; awk '$2 == \"/etc/app-secret\" {print $3}' /proc/mounts"); got != "correct horse battery staple 400\ntmpfs\n" {
		t.Errorf("the Secret's file, its mode and its file system are %q", got)
	}
	if r := s.KResult("exec", "config", "--", "touch", "/etc/app/x"); r.Error == nil {
		t.Error("a read-only mount was written to")
	}
	s.K("patch", "configmap", "app", "--patch", `{"data":{"colour":"green","new":"file"}}`)
	s.K("patch", "secret", "app", "--patch", `{"stringData":{"password":"changed"}}`)
	Eventually(t, 90*time.Second, "the change of ConfigMap and Secret in the files", func(context.Context) error {
		if got := sh("cat /etc/app/colour /etc/app/new /etc/app-secret/password"); got != "greenfilechanged" {
			return fmt.Errorf("they are %q", got)
		}
		return nil
	})
	if got := sh("echo $COLOUR"); got != "blue\n" {
		t.Errorf("the environment of a running process became %q", got)
	}
}
