package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	javaScriptVersion   = "1.3.0" // 2.0 needs Node.js 22
	javaScriptNamespace = "javascript"
)

//go:embed javascript.mjs
var javaScriptProgram []byte

// javaScript has no images: the client runs on this machine, through all that happens to the
// cluster.
var javaScript = program{
	name: "JavaScript client", version: javaScriptVersion,
	scenario: "an informer and a writer of `@kubernetes/client-node` (npm) outlive the round; the informer has seen each acknowledged object once",
	npm:      "@kubernetes/client-node@" + javaScriptVersion,
	install: func(ctx context.Context, s *site) error {
		return s.apply(ctx, namespaceNamed(javaScriptNamespace))
	},
	begin: func(ctx context.Context, s *site, r round) error {
		out := &bytes.Buffer{}
		// Node.js looks for packages beside the program.
		program := filepath.Join(s.workshop.Packages(s.program.npm), "program.mjs")
		if err := os.WriteFile(program, javaScriptProgram, 0o644); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "node", program, javaScriptNamespace, string(r))
		cmd.Stdout, cmd.Stderr = out, out
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig())
		if err := cmd.Start(); err != nil {
			return err
		}
		ended := make(chan struct{})
		var err error
		go func() { // ends with the process, which ctx bounds
			defer close(ended)
			err = cmd.Wait()
		}()
		s.ended = func() (string, error) {
			<-ended
			if err != nil {
				return "", fmt.Errorf("node: %w: %s", err, out)
			}
			return out.String(), nil
		}
		// The round begins when it is at work.
		began, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { // ends with this function or the process
			select {
			case <-ended:
				cancel()
			case <-began.Done():
			}
		}()
		if err := s.until(began, "the first object", func(ctx context.Context) error {
			_, err := s.kubectl(ctx, "get", "configmap", "-n", javaScriptNamespace, string(r)+"-0")
			return err
		}); err != nil && ctx.Err() == nil && began.Err() != nil {
			out, ended := s.ended()
			return fmt.Errorf("node ended at once: %w: %s", ended, out)
		} else if err != nil {
			return err
		}
		return nil
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.apply(ctx,
			fmt.Sprintf(
				"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s-end, namespace: %s, labels: {round: %[1]s}}",
				r, javaScriptNamespace)); err != nil {
			return err
		}
		out, err := s.ended()
		if err != nil {
			return err
		}
		var report struct {
			Created []string
			Seen    map[string]int
			Errors  []string
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if len(report.Created) == 0 {
			return errors.New("it has created nothing")
		}
		var wrong []string
		for _, name := range report.Created {
			if report.Seen[name] != 1 {
				wrong = append(wrong, fmt.Sprintf("%s %d times", name, report.Seen[name]))
			}
		}
		if len(wrong) > 0 {
			slices.Sort(wrong)
			return fmt.Errorf("of %d objects the informer has seen %s; errors: %q", len(report.Created),
				strings.Join(wrong, ", "), report.Errors)
		}
		say("JavaScript client: %d objects, each seen once; %d errors of the client meanwhile", len(report.Created),
			len(report.Errors))
		return nil
	},
}
