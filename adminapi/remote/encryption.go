package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/datakeys"
)

// Encryption asks for the state of the encryption of objects.
func Encryption(ctx context.Context, config *rest.Config) (*adminapi.EncryptionAnswer, error) {
	return encryption(ctx, config, http.MethodGet, EncryptionChange{})
}

// EncryptionChange is a change of the encryption.
type EncryptionChange struct {
	Change    datakeys.Change
	Resources []string // to encrypt in addition
	Decrypt   []string // to encrypt no more
	DryRun    bool     // only check whether it would be refused
}

// Make asks for the change.
func (e EncryptionChange) Make(ctx context.Context, config *rest.Config) (*adminapi.EncryptionAnswer, error) {
	return encryption(ctx, config, http.MethodPost, e)
}

// EarlierBackups is the operator's next step after resources were encrypted that were in clear.
const EarlierBackups = "backups from before this change may have objects in clear, also those on the servers' disks: " +
	"make a new one (barque snapshot save --key-file FILE), and delete the others"

// lookEncryption is the command that shows how far a change is.
const lookEncryption = "`barque secrets-encrypt status`"

// AwaitEncryption waits for the end of a change, up to a timeout. It reports each step.
func AwaitEncryption(
	ctx context.Context, config *rest.Config, answer *adminapi.EncryptionAnswer, wait time.Duration,
	tell func(text string),
) (*adminapi.EncryptionAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	told, waiting, next := datakeys.AtRest, "", time.Time{}
	for answer.Step != datakeys.AtRest {
		now := strings.Join(answer.Waiting, ", ")
		if answer.Step != told {
			told, waiting, next = answer.Step, now, time.Now().Add(keysToldAfter)
			tell(answer.Text)
		} else if time.Now().After(next) && now != "" && now != waiting {
			waiting, next = now, time.Now().Add(keysToldAfter)
			tell("waiting: " + now + problems(&answer.Status))
		}
		select {
		case <-ctx.Done():
			return nil, unfinishedEncryption(answer)
		case <-time.After(keysEvery):
		}
		newer, err := Encryption(ctx, config)
		switch {
		case err == nil:
			answer = newer
		case ctx.Err() != nil:
			return nil, unfinishedEncryption(answer)
		}
		// A server that does not answer may be away for a moment; the change continues.
	}
	return answer, nil
}

func unfinishedEncryption(answer *adminapi.EncryptionAnswer) error {
	reason := ""
	if len(answer.Waiting) > 0 {
		reason = ", waiting: " + strings.Join(answer.Waiting, ", ") + problems(&answer.Status)
	}
	return &exitcode.Error{Code: exitcode.Unfinished,
		Err: fmt.Errorf("the change is under way (%s%s). It continues by itself; %s shows its progress", answer.Text,
			reason, lookEncryption)}
}

// problems returns the reasons of the servers, after the names of those that are awaited.
func problems(s *datakeys.Status) (text string) {
	for _, server := range s.Servers {
		if server.Problem != "" {
			text += fmt.Sprintf("; %s: %s", server.Name, server.Problem)
		}
	}
	return text
}

func encryption(
	ctx context.Context, config *rest.Config, method string, change EncryptionChange,
) (*adminapi.EncryptionAnswer, error) {
	client, end, err := Once(config, 30*time.Second)
	if err != nil {
		return nil, err
	}
	defer end()
	request := client.Verb(method).AbsPath(adminapi.EncryptionPath)
	if method == http.MethodPost {
		request = request.Param("change", string(change.Change))
		for _, r := range change.Resources {
			request = request.Param("resource", r)
		}
		for _, r := range change.Decrypt {
			request = request.Param("decrypt", r)
		}
		if change.DryRun {
			request = request.Param("dryRun", "true")
		}
	}
	data, err := request.DoRaw(ctx)
	answer := new(adminapi.EncryptionAnswer)
	if json.Unmarshal(data, answer) == nil && answer.Error != "" {
		switch {
		case answer.Refused:
			return nil,
				&exitcode.Error{Code: exitcode.Refused,
					Err: fmt.Errorf("refused, nothing was changed: %s", answer.Error)}
		case answer.Unfinished:
			return nil,
				&exitcode.Error{Code: exitcode.Unfinished,
					Err: fmt.Errorf("%s; %s shows whether it was begun", answer.Error, lookEncryption)}
		case answer.NoLeader:
			err := error(
				&exitcode.Error{Code: exitcode.NoQuorum,
					Err: fmt.Errorf("%s; see `barque cluster status` for the cause and the remedy", answer.Error)})
			if method != http.MethodGet {
				err = Unchanged(err)
			}
			return nil, err
		}
		return nil, fmt.Errorf("%s; see `barque cluster status` for the cause and the remedy", answer.Error)
	}
	if method != http.MethodGet && MaybeDone(err) {
		return nil,
			&exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf("whether it was begun is not known: %w; %s shows it", said(data, err), lookEncryption)}
	}
	if apierrors.IsNotFound(err) {
		return nil,
			fmt.Errorf("the server at %s is of a version that does not encrypt objects: upgrade all servers first",
				config.Host)
	}
	if err != nil {
		return nil,
			fmt.Errorf("ask %s for the encryption of objects: %w", config.Host, WithAdvice(config, said(data, err)))
	}
	return answer, nil
}

// providerPrefix begins the names of providers that are no data keys, by convention of Kubernetes.
const providerPrefix = "k8s:enc:"

// writeFile writes the status of a file of providers.
func writeFile(w io.Writer, f *datakeys.FileStatus) {
	path, use := f.Path, "in use"
	switch {
	case path == "":
		path = "none on the server that answers"
		fallthrough
	case !f.Writes:
		use = "not in use: the data key writes"
	}
	fmt.Fprintf(w, "file of providers\t%s (%s)\n", path, use)
	for _, resource := range slices.Sorted(maps.Keys(f.Resources)) {
		by := f.Resources[resource]
		if f.Writer(resource) == "" {
			by += ": left to the data keys"
		}
		fmt.Fprintf(w, "  %s\t%s\n", resource, by)
	}
	if len(f.Differ) > 0 {
		fmt.Fprintf(w, "file differs\t%s: give all servers the same file\n", strings.Join(f.Differ, ", "))
	}
	if f.Problem != "" {
		fmt.Fprintf(w, "problem of the file\t%s\n", f.Problem)
	}
	if f.Apart != "" {
		fmt.Fprintf(w, "waiting\t%s\n", f.Apart)
	}
}

// WriteEncryption writes a status for people.
func WriteEncryption(w io.Writer, s *datakeys.Status) error {
	state := "off: objects are in clear on the disks of the servers"
	if s.Enabled {
		state = "on"
	}
	fmt.Fprintf(w, "encryption\t%s\nresources\t%s\nstep\t%s\n", state, strings.Join(s.Resources, ", "), s.Text)
	if len(s.Waiting) > 0 {
		fmt.Fprintf(w, "waiting\t%s\n", strings.Join(s.Waiting, ", "))
	}
	if len(s.Except) > 0 {
		fmt.Fprintf(w, "without\t%s\n", strings.Join(s.Except, ", "))
	}
	fmt.Fprintf(w, "objects in clear\t%d\n", s.Clear)
	if s.Other > 0 {
		fmt.Fprintf(w, "objects to rewrite\t%d\n", s.Other)
	}
	if s.Problem != "" {
		fmt.Fprintf(w, "problem\t%s\n", s.Problem)
	}
	if s.File != nil {
		writeFile(w, s.File)
	}
	fmt.Fprintln(w, "\nKEY\tUSE\tMADE\tOBJECTS")
	for _, k := range s.Keys {
		use, made := "reads", k.Made.UTC().Format(time.RFC3339)
		if k.Writes {
			use = "writes and reads"
		}
		switch {
		case strings.HasPrefix(k.ID, providerPrefix) && k.Writes:
			use, made = "of the file: writes and reads", "-"
		case strings.HasPrefix(k.ID, providerPrefix):
			use, made = "of a file", "-"
		case k.Made.IsZero():
			use, made = "missing: nobody can read these objects", "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", k.ID, use, made, k.Objects)
	}
	fmt.Fprintln(w, "\nSERVER\tSTATE\tGENERATION\tDISK")
	for i := range s.Servers {
		server := &s.Servers[i]
		fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s\n", server.Name, server.State, server.Generation, s.Generation,
			diskOf(s, server))
	}
	for _, server := range s.Servers {
		if server.Problem != "" {
			fmt.Fprintf(w, "\nserver %s cannot go on: %s\n", server.Name, server.Problem)
		}
	}
	for _, step := range nextSteps(s) {
		fmt.Fprintf(w, "\n→ %s\n", step)
	}
	return nil
}

// diskOf describes the disk of a server.
func diskOf(s *datakeys.Status, server *datakeys.ServerStatus) string {
	switch {
	case s.Step == datakeys.Spread, s.Step == datakeys.Rewrite, s.Step == datakeys.Clean && !server.Cleaned:
		return "to be cleaned"
	case !s.Enabled:
		return "objects in clear"
	case !server.Cleaned:
		return "may have values from before the last change"
	}
	return "clean"
}

// nextSteps are the operator's, if there are any.
func nextSteps(s *datakeys.Status) (steps []string) {
	if s.Step == datakeys.AtRest && !s.Enabled {
		steps = append(steps, "barque secrets-encrypt enable")
	}
	if s.Step == datakeys.AtRest && s.Enabled && (s.Clear > 0 || s.Other > 0) {
		steps = append(steps, "barque secrets-encrypt rewrite")
	}
	for _, server := range s.Servers {
		if !server.Alive && server.Generation < s.Generation {
			steps = append(steps,
				fmt.Sprintf(
					"start server %s, which goes on with the change then, or remove it: barque cluster remove %[1]s",
					server.Name))
		}
	}
	return steps
}
