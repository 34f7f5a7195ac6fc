package cronoq

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// scriptedServer plays a server as a test says: it hands over each worker stream, and answers calls
// by functions of the test.
type scriptedServer struct {
	pb.UnimplementedWorkersServer
	endpoint string
	streams  chan *scriptedStream
	server   *grpc.Server
	opened   atomic.Int32
	output   func(context.Context, *pb.GetOutputRequest) (*pb.Output, error)
}

// scriptedStream is one worker stream, seen from the server.
type scriptedStream struct {
	t        *testing.T
	stream   grpc.BidiStreamingServer[pb.WorkerMessage, pb.ServerMessage]
	metadata metadata.MD
	received chan *pb.WorkerMessage // Closed when the worker ends its side.
	finish   chan error
}

func newScriptedServer(t *testing.T, options ...grpc.ServerOption) *scriptedServer {
	return startScripted(t, nil, nil, options...)
}

func startScripted(
	t *testing.T, tasks pb.TasksServer, admin pb.AdminServer, options ...grpc.ServerOption,
) *scriptedServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	made := &scriptedServer{
		endpoint: listener.Addr().String(), streams: make(chan *scriptedStream, 100),
		server: grpc.NewServer(options...),
	}
	pb.RegisterWorkersServer(made.server, &scriptedWorkers{scriptedServer: made, t: t})
	if tasks != nil {
		pb.RegisterTasksServer(made.server, tasks)
	}
	if admin != nil {
		pb.RegisterAdminServer(made.server, admin)
	}
	go func() { _ = made.server.Serve(listener) }()
	t.Cleanup(made.server.Stop)
	return made
}

type scriptedWorkers struct {
	*scriptedServer
	t *testing.T
}

func (s *scriptedWorkers) Work(
	stream grpc.BidiStreamingServer[pb.WorkerMessage, pb.ServerMessage],
) error {
	s.opened.Add(1)
	from, _ := metadata.FromIncomingContext(stream.Context())
	made := &scriptedStream{
		t: s.t, stream: stream, metadata: from,
		received: make(chan *pb.WorkerMessage, 10_000), finish: make(chan error, 2),
	}
	go func() {
		defer close(made.received)
		for {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				made.finish <- nil // As a real server does.
			}
			if err != nil {
				return
			}
			made.received <- message
		}
	}()
	s.streams <- made
	select {
	case err := <-made.finish:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (s *scriptedWorkers) GetOutput(
	ctx context.Context, request *pb.GetOutputRequest,
) (*pb.Output, error) {
	return s.output(ctx, request)
}

// next waits for the next stream.
func (s *scriptedServer) next(t *testing.T) *scriptedStream {
	t.Helper()
	select {
	case stream := <-s.streams:
		return stream
	case <-within(t).Done():
		t.Fatal("no worker came")
		return nil
	}
}

// register waits for a stream and accepts its worker.
func (s *scriptedServer) register(t *testing.T, answer *pb.Registered) (*scriptedStream, *pb.Register) {
	t.Helper()
	stream := s.next(t)
	asked := stream.next().GetRegister()
	if asked == nil {
		t.Fatal("the first message is no Register")
	}
	if answer.ProtocolVersion == 0 {
		answer.ProtocolVersion = protocolVersion
	}
	stream.send(&pb.ServerMessage{Message: &pb.ServerMessage_Registered{Registered: answer}})
	return stream, asked
}

// next waits for the worker's next message; nil when it has ended its side.
func (s *scriptedStream) next() *pb.WorkerMessage {
	s.t.Helper()
	select {
	case message := <-s.received:
		return message
	case <-time.After(patience / 4):
		s.t.Fatal("the worker says nothing")
		return nil
	}
}

// nextReports waits for reports, over heartbeats.
func (s *scriptedStream) nextReports() *pb.Reports {
	s.t.Helper()
	for range 100 {
		message := s.next()
		if message == nil {
			s.t.Fatal("the worker ended its side")
		}
		if reports := message.GetReports(); reports != nil {
			return reports
		}
	}
	s.t.Fatal("the worker reports nothing")
	return nil
}

func (s *scriptedStream) send(message *pb.ServerMessage) {
	s.t.Helper()
	if err := s.stream.Send(message); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scriptedStream) lease(leases ...*pb.Lease) {
	s.t.Helper()
	batch := &pb.LeaseBatch{Leases: leases}
	s.send(&pb.ServerMessage{Message: &pb.ServerMessage_Leases{Leases: batch}})
}

func (s *scriptedStream) abort(leases ...uint64) {
	s.t.Helper()
	batch := &pb.AbortBatch{}
	for _, lease := range leases {
		batch.Aborts = append(batch.Aborts, &pb.Abort{Lease: lease, Reason: "cancelled"})
	}
	s.send(&pb.ServerMessage{Message: &pb.ServerMessage_Aborts{Aborts: batch}})
}

func (s *scriptedStream) receipt(reports uint64) {
	s.t.Helper()
	receipt := &pb.Receipt{Reports: reports}
	s.send(&pb.ServerMessage{Message: &pb.ServerMessage_Receipt{Receipt: receipt}})
}

// redirect ends the stream with another server's endpoint.
func (s *scriptedStream) redirect(to string, inHeader bool) {
	pair := metadata.Pairs(shardEndpointKey, to)
	if inHeader {
		if err := s.stream.SetHeader(pair); err != nil {
			s.t.Error(err)
		}
	} else {
		s.stream.SetTrailer(pair)
	}
	s.finish <- status.Error(codes.FailedPrecondition, "another shard")
}

// refusal is a status with a reason, as servers send it.
func refusal(t *testing.T, code codes.Code, reason, message string, details map[string]string) error {
	t.Helper()
	return refusalStatus(t, code, reason, message, details).Err()
}

func refusalStatus(
	t *testing.T, code codes.Code, reason, message string, details map[string]string,
) *status.Status {
	t.Helper()
	info, err := anypb.New(&errdetails.ErrorInfo{Domain: "cronoq", Reason: reason, Metadata: details})
	if err != nil {
		t.Fatal(err)
	}
	plain := status.New(code, message).Proto()
	plain.Details = append(plain.Details, info)
	return status.FromProto(plain)
}

const certs = "../sdk-python/tests/certs/"

func serverTLS(t *testing.T, clientCA string) grpc.ServerOption {
	t.Helper()
	own, err := tls.LoadX509KeyPair(certs+"server.pem", certs+"server.key")
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}
	if clientCA != "" {
		trusted, err := readTLS(&TLSOptions{CA: clientCA})
		if err != nil {
			t.Fatal(err)
		}
		config.ClientCAs, config.ClientAuth = trusted.RootCAs, tls.RequireAndVerifyClientCert
	}
	return grpc.Creds(credentials.NewTLS(config))
}

func lease(number uint64, kind string, payload string) *pb.Lease {
	return &pb.Lease{
		Lease: number, TaskId: 100 + number, Attempt: 1, Kind: kind, Pool: "default",
		Payload: []byte(payload), ContentType: jsonType,
	}
}
