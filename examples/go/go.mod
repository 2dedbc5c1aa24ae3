module read_cookies

go 1.19

require (
	google.golang.org/grpc v1.63.2
	google.golang.org/protobuf v1.33.0
)
