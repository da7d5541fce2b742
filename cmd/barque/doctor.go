package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
)

func clusterDoctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong, and put everything that helps to find more into one file",
		Long: `Find what is wrong with the cluster, each with what mends it, and put everything that
helps to find more into one file: the status, and of every server its last log lines,
metrics, goroutines, store, gossip views, versions, files with their sizes, and what the
kernel tells; the nodes, events and pods of the API, without what is in the pods.

No secrets are in the file: none are collected, and what looks like one is taken out of
the text. Look through it all the same before you give it away: names and addresses
stay. It works without a quorum and with dead servers; of these, run it on the machine.
The exit codes are those of 'barque cluster status'. What is called a note is no fault.`,
		Example: "  barque cluster doctor\n  barque cluster doctor --output /tmp/x.tar.gz\n  barque cluster doctor --output ''        # only what is wrong",
		Args:    noArgs,
	}
	a := addAskerFlags(cmd)
	output := cmd.Flags().String("output", "barque-doctor-TIME.tar.gz", "the file, which must not exist yet; empty for none")
	format := cmd.Flags().String("format", "", "json or yaml instead of text for people")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := errors.Join(checkFormat(c, *format), a.check(c)); err != nil {
			return err
		}
		path := strings.ReplaceAll(*output, "TIME", time.Now().UTC().Format("20060102T150405Z"))
		if path != "" {
			if err := freePath(path); err != nil {
				return &usageError{c.CommandPath(), err}
			}
		}
		return examine(c, a, path, *format)
	}
	return cmd
}

// freePath refuses a file that exists already, or that cannot be made.
func freePath(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already: give another name, or remove it first", path)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return fmt.Errorf("there is no directory %s for the file", filepath.Dir(path))
	}
	return nil
}

// examine does the work of the command. What could not be asked is a finding, too.
func examine(c *cobra.Command, a *asker, path, format string) error {
	e := newExamination(a.procedures())
	h, err := a.ask(c.Context())
	switch {
	case c.Context().Err() != nil:
		return c.Context().Err()
	case err != nil && !isNoAnswer(err):
		return err
	case err != nil:
		e.Add(clusterstatus.Warning{Severity: clusterstatus.Critical, Text: err.Error(), On: "each server", Mend: e.Procedures.Any})
	default:
		e.Status = h.status()
		fmt.Fprintf(c.ErrOrStderr(), "asking %s\n", terminal.Plural(len(serverNames(e.Status)), "server", "servers"))
		e.collect(c.Context(), h, a.timeout)
	}
	e.local(c.Context(), a.dataDir)
	if err := e.devNodes(a.devDir()); err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "what is here of the dev cluster's nodes is not in the file: %v\n", err)
	}
	if err := c.Context().Err(); err != nil {
		return c.Context().Err()
	}
	e.Diagnose()
	if path != "" {
		if err := e.save(path); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		e.File = path
	}
	if err := printOn(c, format, e, e.write); err != nil {
		return err
	}
	return e.exit()
}

func isNoAnswer(err error) bool {
	var coded *exitcode.Error
	return errors.As(err, &coded) && coded.Code == exitcode.NoAnswer
}

// examination is what a doctor has collected, and what it has found.
type examination struct {
	clusterstatus.Examination
	files map[string]string // by name, of the cluster and of this machine
}

func newExamination(by clusterstatus.Procedures) *examination {
	return &examination{Examination: clusterstatus.Examination{Time: time.Now().UTC(), Procedures: by}}
}

func serverNames(s *clusterstatus.ClusterStatus) []string {
	var names []string
	for _, m := range s.Members {
		if m.Role == "server" {
			names = append(names, m.Name)
		}
	}
	return names
}

// Bounds of what the doctor waits for. A server that does not answer costs no more, and keeps
// nobody else waiting.
const (
	collectPatience   = 30 * time.Second
	diagnosisPatience = 10 * time.Second // of each request for a diagnosis
)

// collect asks every server for its diagnosis, and, of those that have answered, the one that knows
// most, for what the API tells. Each question to the API has the time given.
func (e *examination) collect(ctx context.Context, h *heard, each time.Duration) {
	ctx, cancel := context.WithTimeoutCause(ctx, collectPatience, &remote.NoAnswerError{Within: collectPatience})
	defer cancel()
	best := h.at[e.Status.From[0]]
	e.Silent = map[string]string{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	asking.Go(func() { e.files = apiFiles(ctx, h.to(best), each) })
	var unknown, untold error
	asking.Go(func() { e.Webhooks, unknown = blockedBy(ctx, h.to(best), each) })
	asking.Go(func() { e.Network, untold = networkFaults(ctx, h.to(best), each) })
	for _, m := range e.Status.Members {
		if m.Role != "server" {
			continue
		}
		asking.Go(func() {
			d, err := diagnosisOf(ctx, h, best, m)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				e.Silent[m.Name] = err.Error()
				return
			}
			e.Servers = append(e.Servers, *d)
		})
	}
	asking.Wait()
	if unknown != nil {
		e.Note("whether webhooks refuse requests is not known: %v", unknown)
	}
	if untold != nil {
		e.Note("what nodes told of their networks is not known: %v", untold)
	}
	slices.SortFunc(e.Servers, func(a, b clusterstatus.Diagnosis) int { return strings.Compare(a.Server, b.Server) })
}

// diagnosisOf asks for a server's diagnosis where it has answered already, else a server that has
// answered, which passes the question on, and then the server itself at the address that the others
// know.
func diagnosisOf(ctx context.Context, h *heard, best string, m clusterstatus.MemberStatus) (*clusterstatus.Diagnosis, error) {
	path := clusterstatus.DiagnosisPath + "?" + adminapi.RelayParameter + "=" + url.QueryEscape(m.Name)
	var asked []string
	var all error
	for _, host := range []string{h.at[m.Name], best, "https://" + m.API} {
		if host == "" || host == "https://" || slices.Contains(asked, host) {
			continue
		}
		asked = append(asked, host)
		d := new(clusterstatus.Diagnosis)
		limited, cancel := context.WithTimeoutCause(ctx, diagnosisPatience, &remote.NoAnswerError{Within: diagnosisPatience})
		err := remote.GetJSON(limited, h.config, host, path, d)
		cancel()
		if err == nil {
			return d, nil
		}
		all = errors.Join(all, fmt.Errorf("%s: %w", host, err))
	}
	return nil, all
}

// write shows the findings to people, and where the rest is.
func (e *examination) write(to io.Writer, on terminal.Screen) error {
	w := new(strings.Builder) // so that all of it is written, or it is known that it was not
	if len(e.Findings) == 0 {
		fmt.Fprintln(w, on.Paint("nothing is found to be wrong", terminal.Good))
	} else if err := clusterstatus.WriteWarnings(w, on, e.Findings); err != nil {
		return err
	}
	for _, name := range sortedKeys(e.Silent) {
		way := "Run this on its machine, too."
		if e.Procedures.Here {
			way = "What its directory tells is in the file."
		}
		fmt.Fprintln(w, on.Wrap(fmt.Sprintf("%s gave no diagnosis: %s. %s", name, strings.ReplaceAll(e.Silent[name], "\n", "; "), way), 0))
	}
	for _, note := range e.Notes {
		fmt.Fprintln(w, on.Wrap("note: "+note, 0))
	}
	if e.File != "" {
		info, err := os.Stat(e.File)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "all of it is in %s (%s); no secrets were put into it, but names and addresses were\n", e.File, terminal.Bytes(info.Size()))
	}
	_, err := io.WriteString(to, w.String())
	return err
}

func (e *examination) exit() error {
	switch {
	case e.Status == nil:
		return &exitcode.Error{Code: exitcode.NoAnswer}
	case e.Status.Health == clusterstatus.Healthy && len(e.Findings) > 0:
		return &exitcode.Error{Code: exitcode.Degraded}
	}
	return healthError(e.Status.Health)
}
